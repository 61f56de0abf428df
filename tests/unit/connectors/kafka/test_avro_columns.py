"""Columns of Avro: the values that fastavro reads, and no other bytes."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from meander import Flow, KafkaSink, KafkaSource, Registry, SetupError, field
from meander.connectors.kafka.formats import Place, ValueFormat
from meander.state.encoding.value_columns import ValueColumns
from meander.testing import TestFlow

FIELDS = {
    "id": "long", "n": "int", "price": "double", "rate": "float", "paid": "boolean",
    "city": "string", "raw": "bytes",
}  # fmt: skip
KEPT = ["city", "id", "price", "rate", "n", "raw", "paid"]
PLACE = Place("orders", "value", "sink")
records = st.fixed_dictionaries({
    "id": st.integers(-(2**63), 2**63 - 1), "n": st.integers(-(2**31), 2**31 - 1),
    "price": st.floats(allow_nan=False), "rate": st.floats(width=32, allow_nan=False),
    "paid": st.booleans(), "city": st.text(), "raw": st.binary(),
})  # fmt: skip


def schema(folder: Path, name: str, fields: dict[str, Any]) -> Path:
    file = folder / f"{name}.avsc"
    listed = [{"name": one, "type": kind} for one, kind in fields.items()]
    file.write_text(json.dumps({"type": "record", "name": "Order", "fields": listed}))
    return file


@pytest.fixture(scope="module")
def formats(tmp_path_factory: pytest.TempPathFactory) -> tuple[ValueFormat[Any], ValueFormat[Any]]:
    """The format of rows, and that of columns."""
    file = schema(tmp_path_factory.mktemp("schemas"), "order", FIELDS)
    registry = Registry(f"mock://{uuid4()}")
    rows, kept = registry.avro(file), registry.avro(file, columns=KEPT)
    rows.check(PLACE)
    kept.check(PLACE)
    return rows.at(PLACE), kept


def picked(values: Sequence[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [tuple(value[name] for name in KEPT) for value in values]


@given(st.lists(records, min_size=1, max_size=20))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_columns_hold_the_values_that_fastavro_reads(
    formats: tuple[ValueFormat[Any], ValueFormat[Any]], values: list[dict[str, Any]]
) -> None:
    rows, kept = formats
    data = [rows.encode(value) for value in values]
    found = kept.decode_batch(data)
    assert isinstance(found, ValueColumns)
    assert found.kinds == "oiffioi"
    assert [*found] == picked([rows.decode(one) for one in data]) == picked(values)


@given(records, st.integers(0), st.integers(0, 255), st.integers(-3, 3))
def test_altered_bytes_are_refused_or_give_what_fastavro_reads(
    formats: tuple[ValueFormat[Any], ValueFormat[Any]],
    value: dict[str, Any], at: int, byte: int, more: int,
) -> None:  # fmt: skip
    rows, kept = formats
    data = bytearray(rows.encode(value))
    data[5 + at % (len(data) - 5)] = byte
    data = data[:more] if more < 0 else data + bytes(more)
    try:
        found = kept.decode(bytes(data))
    except ValueError:
        return
    *expected, paid = picked([rows.decode(bytes(data))])[0]
    assert repr(found) == repr((*expected, int(paid)))


def test_a_batch_of_several_writers_keeps_its_order(tmp_path: Path) -> None:
    registry = Registry(f"mock://{uuid4()}")
    older = schema(tmp_path, "older", {"n": "int", "id": "int"})
    newer = schema(
        tmp_path, "newer", {"id": "long", "n": "int", "tags": {"type": "array", "items": "int"}}
    )
    reader = schema(tmp_path, "reader", {"id": "double", "n": "int"})
    writers = []
    for file in (older, newer):
        form = registry.avro(file)
        form.check(PLACE)
        writers.append(form.at(PLACE))
    rng = random.Random(1)
    choice = [rng.randrange(2) for _ in range(50)]
    data = [
        writers[one].encode({"id": n, "n": -n, "tags": [n]} if one else {"id": n, "n": -n})
        for n, one in enumerate(choice)
    ]
    found = registry.avro(reader, columns=["n", "id"]).decode_batch(data)
    assert [*found] == [(-n, float(n)) for n in range(50)]


def test_columns_that_the_schema_lacks_are_refused(tmp_path: Path) -> None:
    file = schema(tmp_path, "order", {"id": "long", "by": ["null", "string"]})
    for names in (["by"], ["more"], []):
        with pytest.raises(SetupError, match="no fields .* of a plain type for columns; name"):
            Registry("mock://none").avro(file, columns=names)


def test_a_flow_folds_columns_and_an_unreadable_record_is_a_dead_letter(tmp_path: Path) -> None:
    file = schema(tmp_path, "order", {"id": "long", "at": "long", "city": "string"})
    registry = Registry(f"mock://{uuid4()}")
    flow = Flow("f")
    form = registry.avro(file, columns=["city", "id", "at"])
    orders = flow.source(KafkaSource("orders", form, time=field("at")))
    keyed = orders.key_by(lambda order: order[0])
    keyed.fold("sum", int, lambda sum, order: (sum + order[1], [order[0], sum + order[1]])).sink(
        KafkaSink("sums")
    )
    with TestFlow(flow) as run:
        for n in range(20):
            run.feed("orders", {"id": n, "at": 10_000 + n, "city": "ab"[n % 2]})
        run.feed("orders", b"\0\0\0\0\1\xff", b"json")
        run.run()
        assert run.states("sum") == {"a": sum(range(0, 20, 2)), "b": sum(range(1, 20, 2))}
        assert [letter.value for letter in run.dead_letters] == [b"\0\0\0\0\1\xff", b"json"]
        assert run.values("sums")[:2] == [["a", 0], ["b", 1]]


def test_a_time_that_is_no_column_is_refused(tmp_path: Path) -> None:
    file = schema(tmp_path, "order", {"id": "long", "at": "long"})
    flow = Flow("f")
    form = Registry(f"mock://{uuid4()}").avro(file, columns=["id"])
    flow.source(KafkaSource("orders", form, time=field("at"))).sink(KafkaSink("out"))
    with pytest.raises(SetupError, match="field 'at': it is none of the columns id"):
        TestFlow(flow)
