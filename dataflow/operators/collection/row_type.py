"""The types of the keys and values of a collection."""

from __future__ import annotations

from dataclasses import dataclass

from meander.dataflow.operators.error_policy import safe_repr
from meander.schemas.errors import SetupError
from meander.state.encoding import codec
from meander.state.encoding.codec import UnencodableError


@dataclass(frozen=True, slots=True)
class RowType:
    """The types of a collection's keys and values: `int` has 64 bits, any other one is a type of
    plain Python values.

    >>> RowType(str, int).has_object_keys, str(RowType(str, int))
    (True, 'str -> int')
    """

    key: type = int
    value: type = int

    def __post_init__(self) -> None:
        for name, kind in (("key", self.key), ("value", self.value)):
            if not isinstance(kind, type):
                raise SetupError(
                    "collection", f"its {name} is {kind!r}, no type", "name a type, such as str"
                )

    def fault(self, key: object, value: object, call: str = "collection(read, ") -> str | None:
        """Return why a key or a value is of another type, and the remedy; None for a good row.
        `call` is the beginning of the call that names the types.

        >>> print(RowType(str).fault("a", 7))
        None
        >>> print(RowType(str).fault(5, 7))
        its key is 5, no str; name a type of all, as in collection(read, key=object)
        """
        for name, part, kind in (("key", key, self.key), ("value", value, self.value)):
            if fault := _fault(part, kind):
                remedy = _remedy(part, kind, f"{call}{name}=")
                return f"its {name} is {safe_repr(part)}, {fault}; {remedy}"
        return None

    @property
    def has_object_keys(self) -> bool:
        """Return whether keys are Python values."""
        return self.key is not int

    @property
    def has_object_values(self) -> bool:
        """Return whether values are Python values."""
        return self.value is not int

    def __str__(self) -> str:
        return f"{self.key.__name__} -> {self.value.__name__}"


INTEGERS = RowType()
_WORD = range(-(1 << 63), 1 << 63)


def is_word(part: object) -> bool:
    """Return whether something is an integer of 64 bits."""
    return isinstance(part, int) and not isinstance(part, bool) and part in _WORD


def _fault(part: object, kind: type) -> str | None:
    if kind is int:
        return None if is_word(part) else "no integer of 64 bits"
    if not isinstance(part, kind):
        return f"no {kind.__name__}"
    return None if _is_plain(part) else "no plain value"


def _remedy(part: object, kind: type, call: str) -> str:
    """Return how a value becomes a good one; `call` is the begin of a call that names its type."""
    if not _is_plain(part):
        return "give a plain Python value, such as an int, a str or a tuple"
    if kind is not int:
        return f"name a type of all, as in {call}object)"
    # A number beyond 64 bits is an int all the same, and the type of None has no name.
    own = object if part is None or type(part) is int else type(part)
    module = "numpy." if own.__module__ == "numpy" else ""
    return f"name its type, as in {call}{module}{own.__name__})"


def _is_plain(part: object) -> bool:
    try:
        codec.encode_key(part)
    except UnencodableError:
        return False
    return True
