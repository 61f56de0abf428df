"""The types of the keys and values of a collection."""

from __future__ import annotations

from dataclasses import dataclass

from meander.schemas.errors import SetupError


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
