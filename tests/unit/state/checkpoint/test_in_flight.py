"""Records in flight are read as they were written, by us and by anyone who has Avro."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum
from importlib.resources import files
from io import BytesIO
from typing import Any

import numpy as np
import pytest
from fastavro import parse_schema, schemaless_reader

from meander.schemas.errors import MeanderError
from meander.state.checkpoint import in_flight
from meander.state.checkpoint.in_flight import Header, InFlightColumns, RecordCorrupt
from meander.state.encoding.codec import UnencodableError
from meander.state.encoding.named_types import NamedTypes, use
from meander.state.encoding.object_column import ObjectColumn
from meander.state.encoding.record import Record
from meander.state.encoding.value_columns import ValueColumns, Values
from meander.state.keys.ids import ExecutionId, WorkerId

HEADER = Header(ExecutionId(7), 3, WorkerId(1), "totals", 1, sequence=5)
VALUES: list[object] = [
    None, True, 5, -(1 << 63), 1 << 70, -(1 << 20_000), -3.5, float("inf"), "N14228",
    "\ud800 alone", b"raw", [],
    [1, [2, None]], (1, "a"), ((),), {"k": 1, 2: {"deep": (1.5,)}}, {}, {3, "x"}, frozenset({1}),
    date(2013, 1, 2), datetime(2013, 1, 2, 3, 4, 5, 6, tzinfo=UTC), datetime(2013, 1, 2),  # noqa: DTZ001
    datetime(2013, 1, 2, tzinfo=timezone(timedelta(hours=2), "here")), timedelta(-1, 2, 3),
    Decimal("1.50"), Record({"n": [1]}, "a", "in", 0, 7, -1, (("h", b"x"), ("h", None))),
]  # fmt: skip


def columns(
    values: Values, *, keyed: bool = True, iterations: tuple[int, ...] = ()
) -> InFlightColumns:
    numbers = np.arange(len(values))
    keys = [b"%d" % n for n in numbers] if keyed else None
    return InFlightColumns(
        iterations, numbers + (5 << 20), numbers, numbers + 1, numbers + 2, numbers + 3, keys,
        numbers % 4 if keyed else None, values,
    )  # fmt: skip


def test_records_of_objects_come_back_within_containers() -> None:
    class Size(Enum):
        SMALL = 1

    record = Record(Size.SMALL, (Size.SMALL,), "in", 0, 7, -1, ())
    values: list[object] = [record, [record], {"a": record}]
    use(NamedTypes([Size]))
    _, read = in_flight.decode(in_flight.encode(HEADER, columns(values)))
    assert read.values == values
    assert type(read.values[0]) is Record


@pytest.mark.parametrize("keyed", [True, False])
@pytest.mark.parametrize("iterations", [(), (2,), (0, 9)])
def test_records_come_back_type_for_type(keyed: bool, iterations: tuple[int, ...]) -> None:
    written = columns(VALUES, keyed=keyed, iterations=iterations)
    header, read = in_flight.decode(in_flight.encode(HEADER, written))
    assert header == HEADER
    assert read.values == VALUES
    assert list(map(type, read.values)) == list(map(type, VALUES))
    assert (read.iterations, read.keys) == (iterations, written.keys)
    for name in ("times", "origins", "partitions", "offsets", "indexes", "bins"):
        one, other = getattr(read, name), getattr(written, name)
        assert (one is None and other is None) or one.tolist() == other.tolist()


def test_anyone_who_has_avro_and_the_schema_reads_them() -> None:
    schema = json.loads(files("meander.schemas").joinpath("in_flight.avsc").read_text("utf-8"))
    data = in_flight.encode(HEADER, columns(["dog", 7, {"k": [1]}]))
    record: Any = schemaless_reader(BytesIO(data[1:]), parse_schema(schema), None)
    assert (record["node"], record["count"]) == ("totals", 3)
    assert record["columns"]["time"] == [5 << 20, (5 << 20) + 1, (5 << 20) + 2]
    assert record["columns"]["value"][:2] == ["dog", 7]
    assert record["columns"]["value"][2] == {
        "kind": "dict", "items": ["k", {"kind": "list", "items": [1]}]
    }  # fmt: skip


@pytest.mark.parametrize("seed", range(20))
def test_what_is_written_column_by_column_is_what_avros_own_writer_writes(seed: int) -> None:
    rng = np.random.default_rng(seed)
    count = int(rng.choice([0, 1, 2, 300]))

    def numbers() -> np.ndarray:
        return rng.integers(-(1 << 63), (1 << 63) - 1, count) >> rng.integers(0, 64, count)

    names = [b"x" * int(size) for size in rng.choice([0, 1, 63, 64, 9000], count)]
    plain: list[list[object]] = [
        list(names), [name.decode() for name in names], numbers().tolist(), [1.5] * count,
        [VALUES[n % len(VALUES)] for n in range(count)], ["é"] * count,
    ]  # fmt: skip
    for values in plain:
        keys, bins = (names, numbers() & 0xFFFF) if seed % 2 else (None, None)
        iterations = tuple(range(seed % 3))
        five = [numbers() for _ in range(5)]
        times, origins, partitions, offsets, indexes = five
        written = InFlightColumns(
            iterations, times, origins, partitions, offsets, indexes, keys, bins, values
        )
        record = {
            "iterations": iterations, "key": keys, "bin": None if bins is None else bins.tolist(),
            "value": [in_flight._to_avro(value) for value in values],
            **dict(zip(("time", "origin", "partition", "offset", "index"),
                       (column.tolist() for column in five), strict=True)),
        }  # fmt: skip
        body = in_flight._encode_record(in_flight._COLUMNS, record)
        assert in_flight.encode(HEADER, written).endswith(body)


TYPED = ValueColumns((
    np.array([1, -(1 << 63), (1 << 63) - 1]), np.array([0.5, -0.0, np.nan]), np.array([7, 7, 7]),
    ObjectColumn.of(["b", (1, None), "b"]),
))  # fmt: skip


@pytest.mark.parametrize("keyed", [True, False])
@pytest.mark.parametrize("rows", [0, 1, 3])
def test_value_columns_come_back_as_columns(keyed: bool, rows: int) -> None:
    written = columns(TYPED[:rows], keyed=keyed)
    header, read = in_flight.decode(in_flight.encode(HEADER, written))
    assert (header, read.keys) == (HEADER, written.keys)
    assert isinstance(read.values, ValueColumns)
    assert read.values.kinds == TYPED.kinds
    assert repr([*read.values]) == repr([*TYPED[:rows]])


def test_value_columns_are_written_as_avros_own_writer_writes_them_and_any_reader_reads() -> None:
    schema = json.loads(files("meander.schemas").joinpath("in_flight.avsc").read_text("utf-8"))
    data = in_flight.encode(HEADER, columns(TYPED[:2]))
    record: Any = schemaless_reader(BytesIO(data[1:]), parse_schema(schema), None)
    columns_read = [{"long": [1, -(1 << 63)]}, {"double": [0.5, -0.0]}, {"long": [7, 7]}]
    objects = record["columns"]["value"][0]["columns"][-1]
    values = [objects["object"][place] for place in objects["place"]]
    assert values == ["b", {"kind": "tuple", "items": [1, None]}]
    assert record["columns"]["value"] == [{"columns": [*columns_read, objects]}]
    assert data.endswith(in_flight._encode_record(in_flight._COLUMNS, record["columns"]))


@pytest.mark.parametrize("lost", [1, 8, 60])
def test_value_columns_that_are_cut_short_are_found(lost: int) -> None:
    data = in_flight.encode(HEADER, columns(TYPED))
    with pytest.raises(RecordCorrupt):
        in_flight.decode(data[:-lost])


VERSION_1 = (
    "010e06020c746f74616c73020a044eceeab9e74af848000480808005828080050004000200040204"
    "00040406000406080002040230023100020400020004040208026100"
)
EXTRA: dict[str, Any] = {"event_ms": np.array([3, 4]), "headers": [b"h", b""]}
VERSION_2 = (
    "020e06020c746f74616c73020a044da37afcc00c2e8d000480808005828080050004000200040204"
    "0004040600040608000204023002310002040002000204106576656e745f6d730204060800000e68"
    "656164657273000204026800000004040208026100"
)
NAMES = "orders", "élan"
VERSION_3 = (
    "030e06020c746f74616c73020a047cfcc65b9ae7b0f4000480808005828080050004000200040204"
    "000404060004060800020402300231000204000200040c6f72646572730ac3a96c616e0002041065"
    "76656e745f6d730204060800000e68656164657273000204026800000004040208026100"
)


def test_version_1_is_read_for_ever() -> None:
    header, read = in_flight.decode(bytes.fromhex(VERSION_1))
    assert (header, read.values, read.extra) == (HEADER, [1, "a"], None)


@pytest.mark.parametrize(("golden", "names"), [(VERSION_2, ()), (VERSION_3, NAMES)], ids=["2", "3"])
def test_version_2_adds_extra_columns_and_version_3_names_of_origins(
    golden: str, names: tuple[str, ...]
) -> None:
    header, read = in_flight.decode(bytes.fromhex(golden))
    assert (header, read.values, read.origin_names) == (HEADER, [1, "a"], names)
    assert read.extra is not None
    numbers, strings = read.extra.values()
    assert ([*numbers], strings) == ([3, 4], [b"h", b""])


def test_version_3_is_written() -> None:
    written = replace(columns([1, "a"]), extra=EXTRA, origin_names=NAMES)
    assert in_flight.encode(HEADER, written).hex() == VERSION_3


def test_extra_columns_are_written_as_avros_own_writer_writes_them() -> None:
    schema = json.loads(files("meander.schemas").joinpath("in_flight.avsc").read_text("utf-8"))
    data = in_flight.encode(HEADER, replace(columns([1, "a"]), extra=EXTRA))
    record: Any = schemaless_reader(BytesIO(data[1:]), parse_schema(schema), None)
    assert record["columns"]["extra"] == [
        {"name": "event_ms", "long": [3, 4], "bytes": None},
        {"name": "headers", "long": None, "bytes": [b"h", b""]},
    ]
    written = {**record["columns"], "value": [*map(in_flight._to_avro, [1, "a"])]}
    assert data.endswith(in_flight._encode_record(in_flight._COLUMNS, written))


@pytest.mark.parametrize("lost", [1, 20, 60])
def test_a_record_that_is_cut_short_is_found(lost: int) -> None:
    data = in_flight.encode(HEADER, columns(VALUES))
    with pytest.raises(RecordCorrupt, match="; look for another program that writes to the"):
        in_flight.decode(data[:-lost])


def test_a_byte_that_is_another_is_found() -> None:
    data = in_flight.encode(HEADER, columns(VALUES))
    for at in range(30, len(data), 37):
        changed = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        with pytest.raises(MeanderError):
            in_flight.decode(changed)


def test_another_format_version_is_refused_by_name() -> None:
    data = in_flight.encode(HEADER, columns([1]))
    with pytest.raises(MeanderError, match="'in_flight': its version is 9, .* reads 1 to 3"):
        in_flight.decode(b"\x09" + data[1:])


def test_what_is_no_plain_value_is_refused() -> None:
    with pytest.raises(UnencodableError, match="builtins.object"):
        in_flight.encode(HEADER, columns([object()]))
