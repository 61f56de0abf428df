"""Records per second of a join with a table, over those of a plain fold.

Both drain one backlog on two workers. The table has a row for each key; its changes are part of the
time of the join, as a flow that starts has to read them too.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path

from confluent_kafka import Producer

from benchmarks import load
from benchmarks.running import PARTITIONS, SETTINGS, drain, flow

MODULE = Path(__file__).with_name("joining.py")
BACKLOG, ROWS, JSON_ROWS = "joins-backlog", "joins-rows", "joins-json-rows"
AT_LEAST = {"join_over_fold": 0.5}
RATIOS = {
    "join_over_fold": ("join", "plain_fold"), "json_join_over_fold": ("json_join", "plain_fold"),
}  # fmt: skip
"""Of names in what `drains` finds."""


def prepare(bootstrap: str, records: int) -> None:
    """Put the backlog and the rows on their topics."""
    load.create(bootstrap, BACKLOG, ROWS, JSON_ROWS, partitions=PARTITIONS)
    load.fill(bootstrap, BACKLOG, records)
    before, names = load.START_MS - 1, [load.name(number) for number in range(load.KEYS)]
    load.write(bootstrap, ROWS, ((name, before) for name in names))
    write_json(bootstrap, names, before)


def write_json(bootstrap: str, names: list[bytes], millis: int) -> None:
    """Put rows of four fields on their topic."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5})
    for name in names:
        row = {"name": name.decode(), "city": "Bern", "country": "CH", "zip": 3000}
        producer.produce(JSON_ROWS, json.dumps(row), name, timestamp=millis)
        producer.poll(0)
    producer.flush()


def join(bootstrap: str, records: int, rows: str, **bench: str) -> float:
    """Records per second of the join, from when all run to the last result on its topic."""
    bench = {"ROWS": rows, **bench}
    with flow(bootstrap, BACKLOG, bench, kafka=SETTINGS, module=MODULE) as running:
        began = time.monotonic()
        running.until_results(records, 0.02)
        return records / (time.monotonic() - began)


def drains(bootstrap: str, records: int) -> Mapping[str, float]:
    """The fold and the joins, on one backlog."""
    return {
        "plain_fold": drain(bootstrap, BACKLOG, records),
        "join": join(bootstrap, records, ROWS),
        "json_join": join(bootstrap, records, JSON_ROWS, ROW="json"),
    }
