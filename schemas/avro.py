"""Records at rest in Avro: a byte with the format's version, then the record without its schema.

A format is `<name>.avsc` in this folder; its attribute `version` goes up with every change, and a
golden test holds its bytes. Cost: an array of byte strings is read at about 0.15 us an item, and
written at 0.1 us by `byte_strings`, at three times that as part of a record.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from io import BytesIO
from itertools import chain
from typing import Final, Generic, TypeVar, cast

from fastavro import parse_schema, schemaless_reader, schemaless_writer

from schemas.errors import MeanderError

Record = TypeVar("Record", bound=Mapping[str, object])


class Format(Generic[Record]):
    """One type of record; `Record` is the TypedDict of its fields.

    >>> format = Format[dict[str, object]]("manifest")
    >>> format.encode({"operator": "per_plane", "bin": 3, "epoch": 0, "layers": []}).hex()
    '01127065725f706c616e65060000'
    """

    def __init__(self, name: str) -> None:
        self.name = name
        schema = json.loads(files("schemas").joinpath(f"{name}.avsc").read_text("utf-8"))
        self.version = int(schema["version"])
        self._schema = parse_schema(schema)

    def encode(self, record: Record) -> bytes:
        """The bytes of a record."""
        out = BytesIO(bytes([self.version]))
        out.seek(1)
        schemaless_writer(out, self._schema, record)
        return out.getvalue()

    def decode(self, data: bytes) -> Record:
        """The record of some bytes. Raises MeanderError when another version wrote them."""
        version = data[0] if data else None
        if version != self.version:
            raise MeanderError(
                f"a record of format '{self.name}'",
                f"its version is {version}, where this program reads {self.version}",
                "read it with the release that wrote it",
            )
        source = BytesIO(data)
        source.seek(1)
        return cast(Record, schemaless_reader(source, self._schema, None))


def byte_strings(items: Sequence[bytes]) -> bytes:
    """An array of byte strings as it stands in a record, written in native code.

    >>> byte_strings([b"a", b"bc"]).hex()
    '04026104626300'
    """
    if not items:
        return b"\0"
    lengths = list(map(len, items))
    known = max(lengths) < len(_LENGTHS)
    before = map(_LENGTHS.__getitem__ if known else _length, lengths)
    return b"".join(
        [_length(len(items)), *chain.from_iterable(zip(before, items, strict=True)), b"\0"]
    )


def _length(number: int) -> bytes:
    """A length as Avro has it: zigzag, seven bits a byte."""
    left, out = number << 1, bytearray()
    while left > 0x7F:
        out.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes([*out, left])


_LENGTHS: Final = [_length(number) for number in range(1 << 13)]
"""Those that take up to two bytes."""
