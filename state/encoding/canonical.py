"""The canonical form of all values that equal a value in value and types, at every depth.

Guarantees that keys with equal canonical forms have equal bytes, and that the form equals the
value. Zero has no sign, NaN one form, a Decimal no trailing zeros, a zoned datetime is in UTC, a
dict is in the order of its keys' bytes. Cost: a copy of each container.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime, timedelta, timezone
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal
from functools import partial
from typing import Any, Final

import numpy as np

from meander.state.encoding import forms, named_types

Pack = Callable[[object], bytes]
"""A function that encodes a value."""
STABLE: Final[frozenset[type]] = frozenset({
    type(None), bool, int, str, bytes, date, timedelta, *forms.IMMUTABLE,
}) - {np.float16, np.float32, np.float64}  # fmt: skip
"""The types whose equal values have equal bytes."""
_EXACT: Final = Context(prec=MAX_PREC, Emin=MIN_EMIN, Emax=MAX_EMAX, traps=[])
_MAX_PLAIN_DIGITS: Final = 40
"""The most digits of a whole Decimal that a key writes without an exponent."""
_MAX_UTC_OFFSET: Final = timedelta(days=1) - timedelta.resolution
"""The greatest distance of a time zone from UTC."""
_ZONES: Final = (timezone.utc, timezone(_MAX_UTC_OFFSET), timezone(-_MAX_UTC_OFFSET))  # noqa: UP017 (as it is decoded)


def canonical(value: Any, pack: Pack) -> Any:  # noqa: ANN401 (it returns the type that it takes)
    """Return the canonical form of a value that the codec accepts."""
    kind = type(value)
    if kind in STABLE:
        return value
    if kind is float:
        # A container may hold several NaN, as none equals another; so each NaN becomes a new
        # object.
        return value + 0.0 if value == value else float("nan")
    of_part = partial(canonical, pack=pack)
    if kind is tuple:
        return tuple(map(of_part, value))
    if (form := named_types.form_of(kind)) is not None:
        return form.canonical(value, of_part)
    match value:
        case Decimal():
            return _canonical_decimal(value)
        case datetime():
            return _canonical_datetime(value)
        case dict():
            items = [(of_part(key), of_part(item)) for key, item in value.items()]
            return dict(sorted(items, key=pack))
        case list() | set() | frozenset():
            return kind(map(of_part, value))
    return value


def _canonical_decimal(value: Decimal) -> Decimal:
    if value.is_nan():
        return Decimal("NaN")
    if not value:
        return Decimal()
    short = _EXACT.normalize(value)
    plain = value.is_finite() and 0 <= short.adjusted() < _MAX_PLAIN_DIGITS
    if plain and short == short.to_integral():
        return short.quantize(Decimal(1), context=_EXACT)
    return short


def _canonical_datetime(value: datetime) -> datetime:
    offset, local = value.utcoffset(), value.replace(tzinfo=None, fold=0)
    if offset is None:
        return local
    for zone in _ZONES:
        try:
            return (local + (zone.utcoffset(None) - offset)).replace(tzinfo=zone)
        except OverflowError:
            """The first or the last day has no such instant in this zone; another zone has it."""
    raise AssertionError(f"{value!r} is in no zone")
