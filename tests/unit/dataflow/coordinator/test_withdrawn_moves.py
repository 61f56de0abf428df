"""A worker that has received moves of a far time leaves at once where these were withdrawn (I7)."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from meander import Checkpointing, Flow, KafkaSink, KafkaSource
from meander.testing import TestFlow

FAR = 4_102_444_800_000
"""Milliseconds of the year 2100."""
KEYS, AT_ONCE = 10, 50
STEPS: list[dict[str, object]] = [
    {"type": "migrate", "id": "far", "bins": [*range(8)], "worker": 1, "time": FAR},
    {"type": "abort", "id": "a", "command": "far"},
    {"type": "rescale", "id": "down", "workers": 1},
    {"type": "rescale", "id": "up", "workers": 3},
    {"type": "migrate", "id": "m", "bins": [0, 1, 2], "worker": 2},
    {"type": "rescale", "id": "down again", "workers": 1},
]


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
@pytest.mark.parametrize("seed", range(4))
def test_workers_leave_and_join_after_a_far_move_was_withdrawn(seed: int, delivery: Any) -> None:
    flow = Flow("f", bins=3, delivery=delivery, checkpoints=Checkpointing(interval=0.5))
    numbers = flow.source(KafkaSource("numbers")).key_by(lambda n: n)
    counted = numbers.fold("count", int, lambda count, n: (count + 1, (n, count + 1)))
    counted.sink(KafkaSink("counts"))
    fed, ms = Counter[int](), 1_000
    with TestFlow(flow, 2, seed) as run:
        for step in STEPS:
            some = [n % KEYS for n in range(AT_ONCE)]
            run.feed("numbers", *some, ms=ms)
            fed.update(some)
            ms += 1_000
            run.run_until_idle()
            run.control(step)
            run.run_until_idle()
        run.run()
        ended = Counter(event["type"] for event in run.events)
        values: list[Any] = run.values("counts")
    assert (ended["left"], ended["joined"], ended["rescaled"]) == (3, 2, 3), run.events
    assert Counter(map(tuple, values)) == Counter(
        (n, count) for n in range(KEYS) for count in range(1, 1 + fed[n])
    )
