"""The backlog that is drained, and the number of results that windows give of it.

Time ascends in each partition, so no record is late. A last record of a key of its own on each
partition lies a day behind the others, so all windows of these close.
"""

from __future__ import annotations

from itertools import islice

import numpy as np

from benchmarks import load

TOPIC = "windows"
LAST = load.name(10**8 - 1)
"""The key of the last records."""
DAY_MS = 86_400_000


def fill(bootstrap: str, records: int, partitions: int) -> None:
    """Put the records on the topic."""
    names = islice(load.keys(seed=1), records)
    aged = [(name, load.START_MS + n // load.PER_MS) for n, name in enumerate(names)]
    behind = load.START_MS + records // load.PER_MS + DAY_MS
    load.create(bootstrap, TOPIC, partitions=partitions)
    load.write(bootstrap, TOPIC, [*aged, *((LAST, behind) for _ in range(partitions))])


def results(window: str, seconds: float, records: int) -> int:
    """Return how many results there are of all but the last records.

    >>> results("none", 1, 1000), results("tumbling", 1, 1000) <= 1000
    (1000, True)
    """
    if window == "none":
        return records
    names = [*islice(load.keys(seed=1), records)]
    _, keys = np.unique(names, return_inverse=True)
    times = load.START_MS + np.arange(records) // load.PER_MS
    size = round(seconds * 1000)
    if window == "session":
        order = np.lexsort((times, keys))
        apart = np.diff(times[order]) >= size
        return 1 + int((apart | (np.diff(keys[order]) != 0)).sum())
    every = size if window == "tumbling" else size // 5
    pairs = {
        pair
        for back in range(size // every)
        for pair in zip(keys.tolist(), (times // every - back).tolist(), strict=True)
    }
    return len(pairs)
