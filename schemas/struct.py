"""The base of all structs that members exchange as msgpack or JSON. A reader checks them field by
field.

Guarantees that a struct is immutable, and that type checkers treat each subclass so.
"""

from __future__ import annotations

from typing import dataclass_transform

from msgspec import Struct, field


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
class FrozenStruct(Struct, frozen=True):
    """A struct whose fields cannot change.

    >>> class Place(FrozenStruct):
    ...     partition: int
    >>> Place(3).partition, len({Place(3), Place(3)})
    (3, 1)
    """
