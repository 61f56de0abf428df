"""The expiry of keys: how long a key keeps its state, and what renews this time.

Guarantees that a record meets a state of `init` if and only if its logical time is at or past the
due time of its key. The comparison alone decides, so results depend neither on workers nor on the
moment at which a sweep removes the state (`sweep.py`). A due time lies at whole milliseconds, as
users see times. Cost: two look-ups per record of an operator with a time to live.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Literal, Self, cast, get_args

import numpy as np

from meander.dataflow.records.batch import Int64s
from meander.schemas.control import MAX_MILLIS
from meander.schemas.errors import SetupError
from meander.schemas.option_values import checked_choice, checked_number
from meander.state.encoding.cells import ABSENT
from meander.state.encoding.codec import encode_sealed
from meander.state.encoding.expiring import NEVER
from meander.state.store.store import StateBatch
from meander.state.times.time import SEQUENCE_BITS, duration, to_millis

Refresh = Literal["write", "read", "create"]
"""What renews the time to live of a key: a change of its state, each record or call, or nothing."""


def expiry_of(operator: str, ttl: object, refresh: object) -> Expiry | None:
    """Return the expiry of an operator whose keys live for some seconds; None where they live for
    ever. Raises SetupError for another time to live or refresh."""
    checked_choice(f"operator {operator!r}", "refresh", refresh, get_args(Refresh))
    if ttl is None:
        if refresh != "write":
            raise SetupError(f"operator {operator!r}", f"it has refresh={refresh!r} and no ttl",
                             "give ttl seconds, such as 3600, or leave refresh out")  # fmt: skip
        return None
    seconds = checked_number(f"operator {operator!r}", "ttl", ttl, 0.001)
    return Expiry(to_millis(duration(seconds)), cast(Refresh, refresh))


@dataclass(frozen=True, slots=True)
class Expiry:
    """The time to live of an operator's keys.

    >>> expiry = Expiry(2, "write")
    >>> expiry.dues(np.array([(5 << 20) + 9])).tolist() == [7 << 20]
    True
    """

    millis: int
    refresh: Refresh

    def dues(self, times: Int64s) -> Int64s:
        """Return the due times of keys that are renewed at some times."""
        millis = np.minimum(times >> SEQUENCE_BITS, MAX_MILLIS - self.millis)
        dues: Int64s = (millis + self.millis) << SEQUENCE_BITS
        return dues

    def due(self, time: int) -> int:
        """Return the due time of a key that is renewed at a time."""
        return (min(time >> SEQUENCE_BITS, MAX_MILLIS - self.millis) + self.millis) << SEQUENCE_BITS


def lifetimes_of(
    expiry: Expiry | None, state_batch: StateBatch
) -> AbstractContextManager[Lifetimes | None]:
    """Return the lifetimes of one pass, or None where keys live for ever."""
    return nullcontext() if expiry is None else Lifetimes(expiry, state_batch)


class Lifetimes:
    """The due times of the keys of one pass over records, by slot."""

    def __init__(self, expiry: Expiry, state_batch: StateBatch) -> None:
        self._expiry, self._batch, self._states = expiry, state_batch, state_batch.sealed
        slots = state_batch.slots
        self._dues = dict(zip(slots.tolist(), state_batch.due[slots].tolist(), strict=True))

    def expire(self, slot: int, time: int) -> None:
        """Remove the state in a slot where its due time has come at the time of a record."""
        if self._dues[slot] <= time:
            self._states[slot], self._dues[slot] = ABSENT, NEVER
            self._batch.forgets = True

    def renew(self, slot: int, time: int, before: object) -> None:
        """Renew the due time of a slot after a record or call, given the sealed state before it."""
        state = self._states[slot]
        if state is ABSENT:
            self._dues[slot] = NEVER
        elif self._dues[slot] == NEVER or self._renews(before, state):
            self._dues[slot] = self._expiry.due(time)

    def _renews(self, before: object, after: object) -> bool:
        refresh = self._expiry.refresh
        if refresh != "write" or before is after:
            return refresh == "read"
        return before is ABSENT or encode_sealed(before) != encode_sealed(after)

    def each(self, times: Int64s, failed: Sequence[int]) -> Iterator[int]:
        """Yield the slot of each record of a fold, given the records' times. Remove an expired
        state before its record, and renew the due time behind it. A record whose row is in
        `failed` by then changes no state, so it renews nothing."""
        # A fold calls this for each record, so it repeats `expire` and `renew` in short.
        dues, states, renews = self._dues, self._states, self._expiry.refresh != "create"
        slots, renewed = self._batch.slots.tolist(), self._expiry.dues(times).tolist()
        for row, (slot, time, due) in enumerate(zip(slots, times.tolist(), renewed, strict=True)):
            if dues[slot] <= time:
                self.expire(slot, time)
            yield slot
            if failed and failed[-1] == row:
                continue
            if states[slot] is ABSENT:
                dues[slot] = NEVER
            elif renews or dues[slot] == NEVER:
                dues[slot] = due

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Set the due times of the pass."""
        self._batch.due[[*self._dues]] = [*self._dues.values()]
