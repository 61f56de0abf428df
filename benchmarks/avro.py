"""How many records of Avro one core reads: as dicts, as objects and as columns.

`python -m benchmarks.avro` prints a table. A record has six fields of 27 bytes: three whole numbers
(one of them a time), a floating-point number, a country of 40 and a flag. Times are those of the
process, without its start and the compilation of the loop; the best of some runs counts.
"""

from __future__ import annotations

import json
import random
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

from meander import Registry, field
from meander.connectors.kafka.formats import Place, ValueFormat
from meander.connectors.kafka.source.deserializer import Deserializer
from meander.connectors.testing.in_memory import InMemoryMessage, TopicRecord
from meander.dataflow.keepalive import NO_KEEPALIVE

RECORDS = 40_000
BATCH = 1000
RUNS = 5
FIELDS = {
    "id": "long", "at": {"type": "long", "logicalType": "timestamp-millis"}, "customer": "int",
    "amount": "double", "country": "string", "paid": "boolean",
}  # fmt: skip
NUMBERS = ["id", "at", "customer", "amount"]


@dataclass(frozen=True)
class Order:
    id: int
    at: datetime
    customer: int
    amount: float
    country: str
    paid: bool


def main() -> None:
    """Print the records per second of each way."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "order.avsc"
        listed = [{"name": name, "type": kind} for name, kind in FIELDS.items()]
        file.write_text(json.dumps({"type": "record", "name": "Order", "fields": listed}))
        registry, place = Registry(f"mock://{uuid4()}"), Place("orders", "value", "sink")
        rows = registry.avro(file)
        rows.check(place)
        data = _records(rows.at(place))
        columns = registry.avro(file, columns=NUMBERS)
        columns.check(place)
        wide = registry.avro(file, columns=[*FIELDS])
        ways: list[tuple[str, Callable[[], object]]] = [
            ("avro_dicts_per_s", lambda: [*map(rows.decode, data)]),
            ("avro_objects_per_s", _each(registry.avro(file, Order), data)),
            ("avro_columns_per_s", _batches(columns, data)),
            ("avro_all_columns_per_s", _batches(wide, data)),
            ("avro_source_dicts_per_s", _source(rows, data)),
            ("avro_source_columns_per_s", _source(columns, data)),
        ]
        for name, read in ways:
            print(f"{name:<34}{_rate(read):>12,.0f}")


def _each(form: ValueFormat[Order], data: Sequence[bytes]) -> Callable[[], object]:
    return lambda: [*map(form.decode, data)]


def _batches(form: ValueFormat[tuple[object, ...]], data: Sequence[bytes]) -> Callable[[], object]:
    return lambda: [form.decode_batch(data[n : n + BATCH]) for n in range(0, len(data), BATCH)]


def _source(form: ValueFormat[Any], data: Sequence[bytes]) -> Callable[[], object]:
    """Read as a source does, from messages, with the time of each record."""
    deserializer = Deserializer("in", form, "str", field("at"), "value", NO_KEEPALIVE)
    messages = [InMemoryMessage(TopicRecord(one, None, (), n, 0, n)) for n, one in enumerate(data)]
    starts = range(0, len(data), BATCH)
    return lambda: [deserializer.read_all(messages[n : n + BATCH]) for n in starts]


def _records(form: ValueFormat[dict[str, object]]) -> list[bytes]:
    rng = random.Random(1)
    return [
        form.encode({
            "id": 1000 * n, "at": datetime.fromtimestamp(1.7e9 + n, UTC),
            "customer": rng.randrange(10**6), "amount": rng.random(),
            "country": f"C{rng.randrange(40)}", "paid": True,
        })
        for n in range(RECORDS)
    ]  # fmt: skip


def _rate(read: Callable[[], object]) -> float:
    read()
    times = []
    for _ in range(RUNS):
        start = time.process_time()
        found = read()
        times.append(time.process_time() - start)
        assert found is not None
    return RECORDS / min(times)


if __name__ == "__main__":
    main()
