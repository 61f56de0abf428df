"""Columns of Avro: flat records as tuples of some fields, without a Python object per number.

Guarantees the values that fastavro reads, or an error for a batch with a record that does not fit;
the caller then reads its records one by one. A writer's schema that has more than flat fields is
read by fastavro. Invariant: a text that comes again keeps its code. Cost: 0.1 us per record of
numbers, and 0.3 us more for each text.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from meander.connectors.kafka.formats import Place
from meander.connectors.kafka.registry import avro_kernel as kernel
from meander.connectors.kafka.registry.avro import AvroFormat
from meander.connectors.kafka.registry.client import ID_BYTES, split
from meander.connectors.kafka.registry.schema import Subject
from meander.schemas.errors import SetupError
from meander.state.collections.columns import Int64s
from meander.state.encoding import codec
from meander.state.encoding.object_column import ObjectColumn, code_of
from meander.state.encoding.value_columns import Column, Row, ValueColumns

KINDS = {
    "long": kernel.LONG, "int": kernel.INT, "double": kernel.DOUBLE, "float": kernel.FLOAT,
    "boolean": kernel.BOOLEAN, "string": kernel.TEXT, "bytes": kernel.TEXT,
}  # fmt: skip
KNOWN_TEXTS = 1 << 16
"""The most texts whose codes a worker keeps."""
NUMBERS = {"long", "int", "double", "float", "boolean"}


class AvroColumns(AvroFormat[Row]):
    """Values that are tuples of some fields of a record, as columns."""

    def __init__(self, subject: Subject, names: Sequence[str]) -> None:
        """Raise SetupError where the reader's schema lacks a field, or has one of another type."""
        super().__init__(subject, None)
        self._names = (*names,)
        self._types = _flat_types(subject.schema.text if subject.schema else "{}")
        wrong = [name for name in self.names if name not in self._types]
        if wrong or not self.names:
            raise SetupError(
                f"schema {subject.schema and subject.schema.file}",
                f"it has no fields {wrong} of a plain type for columns",
                f"name fields of the types {', '.join(KINDS)}",
            )
        self._layouts: dict[int, _Layout | None] = {}
        self._codes: dict[tuple[str, bytes], tuple[int, bytes]] = {}

    @property
    def names(self) -> Sequence[str]:
        """Return the names of the columns."""
        return self._names

    def check(self, place: Place) -> None:
        """Prepare the schema, and compile the loop."""
        super().check(place)
        none = np.zeros(0, np.int64)
        empty = np.zeros((1, 0), np.int64)
        kernel.read_records(np.zeros(0, np.uint8), none, none, none, none, empty, empty, empty)

    def decode(self, data: bytes) -> Row:
        """Return the value of a record."""
        return self.decode_batch([data])[0]

    def encode(self, value: Row) -> bytes:
        """Return the record of the fields in a tuple, or in a dict."""
        named: Any = value
        if isinstance(named, tuple):
            named = dict(zip(self.names, named, strict=True))
        return super().encode(named)

    def decode_batch(self, data: Sequence[bytes]) -> ValueColumns:
        """Return the values of records. Raise ValueError where one does not fit."""
        heads = {one[:ID_BYTES] for one in data}
        if len(heads) == 1:
            return self._decode_of(split(data[0])[0], data)
        rows = {head: [n for n, one in enumerate(data) if one[:ID_BYTES] == head] for head in heads}
        parts = [
            self._decode_of(split(data[of[0]])[0], [data[n] for n in of]) for of in rows.values()
        ]
        order = np.argsort(np.concatenate([*rows.values()]))
        return ValueColumns.concat(parts).take(order)

    def _decode_of(self, id: int, data: Sequence[bytes]) -> ValueColumns:
        """Return the values of records of one schema."""
        if id not in self._layouts:
            self._layouts[id] = self._layout(id)
        layout = self._layouts[id]
        if layout is None:
            return self._by_fastavro(data)
        joined = b"".join(data)
        longs, words, places = layout.read(joined, data)
        columns = list[Column]()
        for name, field in zip(self.names, layout.fields, strict=True):
            kind, slot = layout.kinds[field], layout.slots[field]
            if kind == kernel.TEXT:
                columns.append(self._texts(self._types[name], joined, places, int(slot)))
            elif kind == kernel.DOUBLE:
                columns.append(words[slot].view(np.float64))
            elif kind == kernel.FLOAT:
                columns.append(words[slot].astype(np.uint32).view(np.float32).astype(np.float64))
            elif self._types[name] in ("double", "float"):
                columns.append(longs[slot].astype(np.float64))
            else:
                columns.append(longs[slot])
        return ValueColumns((*columns,))

    def _texts(self, kind: str, joined: bytes, places: Int64s, slot: int) -> ObjectColumn:
        starts, lengths = places[2 * slot], places[2 * slot + 1]
        bounds = zip(starts.tolist(), (starts + lengths).tolist(), strict=True)
        texts = [joined[start:end] for start, end in bounds]
        entries = {}
        known = {}
        for text in set(texts):
            code, data = self._coded(kind, text)
            known[text], entries[code] = code, data
        return ObjectColumn(np.array([known[text] for text in texts], np.int64), entries)

    def _coded(self, kind: str, text: bytes) -> tuple[int, bytes]:
        found = self._codes.get((kind, text))
        if found is None:
            data = codec.encode_key(text.decode() if kind == "string" else text)
            found = code_of(data), data
            if len(self._codes) >= KNOWN_TEXTS:
                self._codes.clear()
            self._codes[kind, text] = found
        return found

    def _by_fastavro(self, data: Sequence[bytes]) -> ValueColumns:
        records: list[dict[str, Any]] = [super(AvroColumns, self).decode(one) for one in data]  # type: ignore[misc]
        columns = list[Column]()
        for name in self.names:
            values, kind = [record[name] for record in records], self._types[name]
            if kind in NUMBERS:
                is_float = kind in ("double", "float")
                columns.append(np.array(values, np.float64 if is_float else np.int64))
            else:
                columns.append(ObjectColumn.of(values))
        return ValueColumns((*columns,))

    def _layout(self, id: int) -> _Layout | None:
        """Return how to read records of a writer's schema, or None where fastavro must."""
        schema = self.subject.client.schema(id)
        if schema.schema_type not in (None, "AVRO"):
            raise ValueError(f"schema {id} is {schema.schema_type}, not AVRO")
        text = schema.schema_str or ""
        types, fields = _flat_types(text), json.loads(text).get("fields", [])
        promoted = all(
            types.get(name) == kind or (types.get(name), kind) in _PROMOTED
            for name, kind in self._types.items()
            if name in self.names
        )
        if len(types) != len(fields) or not promoted:
            return None
        return _Layout([*types], [*types.values()], self.names)


_PROMOTED = {("int", "long"), ("int", "double"), ("long", "double"), ("float", "double")}
"""The types of a writer that a column of another type of the reader takes."""


class _Layout:
    """The fields of a writer's schema, and where those that are kept go."""

    def __init__(self, names: list[str], types: list[str], kept: Sequence[str]) -> None:
        self.kinds = np.array([KINDS[kind] for kind in types], np.int64)
        self.slots = np.full(len(names), -1, np.int64)
        self.fields = [names.index(name) for name in kept]
        counts = [0, 0, 0]
        for field in dict.fromkeys(self.fields):
            group = _group(int(self.kinds[field]))
            self.slots[field] = counts[group]
            counts[group] += 1
        self._counts = counts

    def read(self, joined: bytes, data: Sequence[bytes]) -> tuple[Int64s, Int64s, Int64s]:
        """Return the numbers, the bits of floating-point numbers and the places of texts. Raise
        ValueError for the first record that does not fit."""
        lengths = np.fromiter(map(len, data), np.int64, len(data))
        ends = np.cumsum(lengths)
        longs, words, places = (
            np.empty((max(1, count), len(data)), np.int64)
            for count in (self._counts[0], self._counts[1], 2 * self._counts[2])
        )
        found: npt.NDArray[np.uint8] = np.frombuffer(joined, np.uint8)
        starts = ends - lengths + ID_BYTES
        wrong = kernel.read_records(
            found, starts, ends, self.kinds, self.slots, longs, words, places
        )
        if wrong >= 0:
            raise ValueError("its bytes do not fit the schema of its writer")
        return longs, words, places


def _group(kind: int) -> int:
    if kind == kernel.TEXT:
        return 2
    return 1 if kind in (kernel.DOUBLE, kernel.FLOAT) else 0


def _flat_types(text: str) -> dict[str, str]:
    """Return the fields of plain types of a record's schema; logical types stay numbers."""
    schema = json.loads(text)
    found = dict[str, str]()
    for field in schema.get("fields", []) if isinstance(schema, dict) else []:
        kind = field["type"]
        if isinstance(kind, dict):
            kind = kind.get("type")
        if isinstance(kind, str) and kind in KINDS:
            found[field["name"]] = kind
    return found
