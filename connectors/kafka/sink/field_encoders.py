"""Field encoders: what a sink's formats and functions make of the parts of a record.

Guarantees that a function of the user that gives no such part raises TypeError or ValueError. A
format that differs between topics, as its schema has an id for each, is bound to each of them once.
Cost: native code for built-in formats; others run for each record.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from meander.connectors.kafka.formats import (
    Place,
    ValueFormat,
    at_place,
    encoder,
    is_user_code,
    plain_key,
)
from meander.connectors.kafka.sink.producer import Headers
from meander.dataflow.operators.error_policy import safe_repr
from meander.state.encoding import codec

if TYPE_CHECKING:
    from meander.connectors.kafka.sink.sink import KafkaSink, OwnHeaders

T = TypeVar("T")
Encode = Callable[[Any], bytes | None]


@dataclass(frozen=True, slots=True)
class FieldEncoder(Generic[T]):
    """An encoder of one part of all records."""

    name: str
    encode: Callable[[T], bytes | None]
    is_user_code: bool = False
    """Whether a user's function encodes it, which may take long."""
    by_topic: bool = False
    """Whether it takes tuples of the topic and the value."""


def value_encoder(spec: KafkaSink) -> FieldEncoder[Any]:
    """Return the encoder of values. Raise SetupError where the format has no schema."""
    if isinstance(spec.value, ValueFormat):
        return _of_places("value", spec.value, spec.places("value"), encoder)
    return FieldEncoder("value", encoder(spec.value), is_user_code(spec.value))


def key_encoder(spec: KafkaSink) -> FieldEncoder[Any]:
    """Return the encoder of keys of the stream, or where a function gives the keys that of values.
    Raise SetupError where the format has no schema."""
    if isinstance(spec.key, ValueFormat):
        return _of_places("key", spec.key, spec.places("key"), _of_stream)
    if callable(spec.key):
        return FieldEncoder("key", partial(_own_key, spec.key), is_user_code=True)
    return FieldEncoder("key", plain_key)


def own_headers(function: Callable[[Any], OwnHeaders], value: object) -> Headers:
    """Return the headers that a user's function gives a value. Raise TypeError for others."""
    given = function(value)
    pairs = list(given.items() if isinstance(given, Mapping) else given)
    for pair in pairs:
        match pair:
            case (str(), str() | bytes() | None):
                continue
        raise TypeError(f"{safe_repr(pair)} is no header, a name with text, bytes or None")
    return pairs


def own_partition(function: Callable[[Any], int], value: object) -> int:
    """Return the partition that a user's function gives a value. Raise ValueError for others."""
    partition = function(value)
    if type(partition) is not int or partition < 0:
        raise ValueError(f"a partition is a number from 0 on, not {safe_repr(partition)}")
    return partition


def _of_places(
    name: str,
    form: ValueFormat[Any],
    places: Sequence[Place],
    bound: Callable[[ValueFormat[Any]], Encode],
) -> FieldEncoder[Any]:
    encoders = {place.topic: bound(at_place(form, place)) for place in places}
    if len(places) == 1:
        (encode,) = encoders.values()
        return FieldEncoder(name, encode)

    def encode_at(row: tuple[str, object]) -> bytes | None:
        topic, value = row
        # A row whose topic is refused has none.
        return encoders[topic](value) if topic else None

    return FieldEncoder(name, encode_at, by_topic=True)


def _of_stream(form: ValueFormat[Any]) -> Encode:
    return lambda key: form.encode(codec.decode(key))


def _own_key(function: Callable[[Any], object], value: object) -> bytes | None:
    key = function(value)
    if key is None or isinstance(key, bytes):
        return key
    return key.encode() if isinstance(key, str) else plain_key(codec.encode(key))
