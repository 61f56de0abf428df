"""Avro records: a byte with the version of the format, then the record without its schema.

A format is `<name>.avsc` in this folder. Its attribute `version` grows with every change, and a
golden test pins its bytes. Cost: an array of byte strings takes about 0.15 us per item to read.
`byte_strings` and `longs` write an item in 0.1 us; as a part of a record it takes three times that.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from io import BytesIO
from itertools import chain
from typing import Any, Final, Generic, TypeVar, cast

import numpy as np
import numpy.typing as npt
from fastavro import parse_schema, schemaless_reader, schemaless_writer

from meander.schemas.errors import MeanderError

Record = TypeVar("Record", bound=Mapping[str, object])


class Format(Generic[Record]):
    """One type of record; `Record` is the TypedDict of its fields.

    >>> format = Format[dict[str, object]]("manifest")
    >>> format.encode({"operator": "per_plane", "bin": 3, "epoch": 0, "layers": []}).hex()
    '01127065725f706c616e65060000'
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._schema = _load_schema(name)
        self.version = int(self._schema["version"])

    def encode(self, record: Record) -> bytes:
        """Return the bytes of a record."""
        out = BytesIO(bytes([self.version]))
        out.seek(1)
        schemaless_writer(out, self._schema, record)
        return out.getvalue()

    def decode(self, data: bytes) -> Record:
        """Return the record of some bytes. Raise MeanderError when another version wrote them."""
        version = data[0] if data else None
        if version != self.version:
            raise MeanderError(
                f"a record of format '{self.name}'",
                f"its version is {version}, but this program reads {self.version}",
                "read it with the release that wrote it",
            )
        source = BytesIO(data)
        source.seek(1)
        try:
            return cast(Record, schemaless_reader(source, self._schema, None))
        except Exception as error:  # fastavro documents no common base of its errors
            raise MeanderError(
                f"a record of format '{self.name}'",
                f"it cannot be read ({type(error).__name__}: {error})",
                "look for another program that writes to its topic",
            ) from error


def _load_schema(name: str) -> dict[str, Any]:
    schema = json.loads(files("meander.schemas").joinpath(f"{name}.avsc").read_text("utf-8"))
    return cast(dict[str, Any], parse_schema(schema))


def byte_strings(items: Sequence[bytes], branch: int | None = None) -> bytes:
    """Return an Avro array of byte strings, encoded in native code. `branch` is the index of their
    type in a union.

    >>> byte_strings([b"a", b"bc"]).hex(), byte_strings([b"a"], branch=5).hex()
    ('04026104626300', '020a026100')
    """
    if not items:
        return b"\0"
    lengths = list(map(len, items))
    short = max(lengths) < len(_LENGTHS)
    before = map(_LENGTHS.__getitem__ if short else long, lengths)
    parts = zip(before, items, strict=True)
    tag = [] if branch is None else [long(branch)]
    tagged = parts if branch is None else ((*tag, *part) for part in parts)
    return b"".join([long(len(items)), *chain.from_iterable(tagged), b"\0"])


def array(items: Sequence[bytes]) -> bytes:
    r"""Return an Avro array of encoded items.

    >>> array([long(1), long(2)]), array([])
    (b'\x04\x02\x04\x00', b'\x00')
    """
    return b"".join([long(len(items)), *items, b"\0"]) if items else b"\0"


def longs(numbers: npt.NDArray[np.int64], branch: int | None = None) -> bytes:
    """Return an Avro array of whole numbers, encoded in native code. `branch` is the index of their
    type in a union.

    >>> longs(np.array([0, -1, 64])).hex(), longs(np.array([1]), branch=2).hex()
    ('060001800100', '02040200')
    """
    if not len(numbers):
        return b"\0"
    tag = b"" if branch is None else long(branch)
    if numbers.min() == numbers.max():
        items = (tag + long(int(numbers[0]))) * len(numbers)
    else:
        items = _encode_varied(numbers, tag)
    return long(len(numbers)) + items + b"\0"


def doubles(numbers: npt.NDArray[np.float64]) -> bytes:
    """Return an Avro array of floating-point numbers.

    >>> doubles(np.array([1.0])).hex()
    '02000000000000f03f00'
    """
    if not len(numbers):
        return b"\0"
    return long(len(numbers)) + numbers.astype("<f8").tobytes() + b"\0"


def _encode_varied(numbers: npt.NDArray[np.int64], tag: bytes) -> bytes:
    zigzag = ((numbers << 1) ^ (numbers >> 63)).view(np.uint64)
    least, most = (_size(int(one)) for one in (zigzag.min(), zigzag.max()))
    sizes = np.full(len(zigzag), least)
    for size in range(least, most):
        sizes += zigzag >= np.uint64(1 << 7 * size)
    # All numbers get as many bytes as the greatest number, and then lose their excess bytes.
    shifts = (7 * np.arange(most)).astype(np.uint64)
    out = (zigzag[:, None] >> shifts).astype(np.uint8) | np.uint8(0x80)
    out[np.arange(len(zigzag)), sizes - 1] &= 0x7F
    if tag:
        out = np.insert(out, 0, tag[0], axis=1)
    if least == most:
        return out.tobytes()
    used = np.arange(len(tag) + most) < (len(tag) + sizes)[:, None]
    return out[used].tobytes()


def _size(zigzag: int) -> int:
    return max(1, -(-zigzag.bit_length() // 7))


def long(number: int) -> bytes:
    """Return a whole number in Avro: zigzag, seven bits per byte.

    >>> long(0).hex(), long(-1).hex(), long(64).hex()
    ('00', '01', '8001')
    """
    rest, out = (number << 1) ^ (number >> 63), bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes([*out, rest])


def byte_string(data: bytes) -> bytes:
    r"""Return a byte string, or a text in UTF-8, in Avro.

    >>> byte_string(b"a")
    b'\x02a'
    """
    return long(len(data)) + data


NULL, PRESENT = long(0), long(1)
"""The index that precedes an optional value: absent, or present."""
_LENGTHS: Final = [long(number) for number in range(1 << 13)]
"""The encoded lengths of up to two bytes."""
