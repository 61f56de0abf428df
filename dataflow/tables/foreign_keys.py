"""The join of two tables by a foreign key of the left one, in three stages.

The first stage lies at the key of the left row: it sends the row to its foreign key, and takes it
back from the former one. The second stage lies at the foreign key: it pairs all its left rows with
the right row. The third stage lies at the key of the left row again: of what both foreign keys send
at one time it keeps the new pair. Guarantees at most one change of a key per time, as each stage
waits until all records of a time are in. Invariant: a left row lies at one foreign key. Cost: the
calls of three process functions; the rows of one foreign key are one state.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from meander.dataflow.operators.keyed.context import Context
from meander.state.encoding import codec

State = list[Any]
Record = Any
"""A tuple that one stage sends to the next one."""


def no_left_row() -> State:
    """Return the state of the first stage: the foreign key of the row in a list, and the last
    change at this time."""
    return [None, None]


def left_changed(context: Context, state: State, change: Record) -> State:
    """Take a change of a left row: its key, its foreign key and the row."""
    context.notify()
    return [state[0], change[1:]]


def send_left(context: Context, state: State) -> State:
    """Send the last change of a left row to its foreign key, and take it back from a former one."""
    (sent, change), key = state, context.key
    if change is None:
        return state
    foreign, row = change
    if sent is not None and (row is None or sent != [foreign]):
        context.emit((sent[0], key, None))
    if row is None:
        context.forget()
        return no_left_row()
    context.emit((foreign, key, row))
    return [[foreign], None]


def no_pairs() -> State:
    """Return the state of the second stage: the right row, the left rows with their keys by encoded
    key, the encoded keys that have changed at this time, and the right row before it in a list."""
    return [None, {}, {}, None]


@dataclass(frozen=True, slots=True)
class ForeignKeyJoin:
    """The functions of the second stage."""

    keeps_unmatched: bool

    def left(self, context: Context, state: State, record: Record) -> State:
        """Add, replace or remove a left row."""
        right, rows, changed, before = state
        _, key, row = record
        encoded = codec.encode_key(key)
        if row is None:
            rows.pop(encoded, None)
        else:
            rows[encoded] = (key, row)
        changed[encoded] = key
        context.notify()
        return [right, rows, changed, before]

    def right(self, context: Context, state: State, change: Record) -> State:
        """Replace the right row."""
        right, rows, changed, before = state
        context.notify()
        return [change[-1], rows, changed, [right] if before is None else before]

    def on_notify(self, context: Context, state: State) -> State:
        """Send the pairs that have changed, once all changes of a time are in."""
        right, rows, changed, before = state
        if before not in (None, [right]):
            changed |= {encoded: key for encoded, (key, _) in rows.items()}
        for encoded in sorted(changed):
            _, row = rows.get(encoded, (None, None))
            pairs = row is not None and self._matches(right)
            context.emit((changed[encoded], (row, right) if pairs else None))
        if right is None and not rows:
            context.forget()
        return [right, rows, {}, None]

    def rows(self, state: State) -> Iterator[tuple[object, object, object]]:
        """Yield the rows that a foreign key has in the table of the join: the key of the left row,
        and both rows."""
        right, rows, _, _ = state
        if self._matches(right):
            yield from ((key, row, right) for key, row in rows.values())

    def _matches(self, right: object) -> bool:
        return right is not None or self.keeps_unmatched


def no_pair() -> State:
    """Return the state of the third stage: whether the key has a pair, and its pair or None at this
    time, in a list."""
    return [False, None]


def pair_changed(context: Context, state: State, record: Record) -> State:
    """Take a pair, or its removal at a foreign key. A pair of the new foreign key wins."""
    has_pair, new = state
    context.notify()
    if new is None or record[-1] is not None:
        new = [record[-1]]
    return [has_pair, new]


def send_pair(context: Context, state: State) -> State:
    """Send the pair of a key, once all that both foreign keys send at a time is in."""
    has_pair, new = state
    if new is None:
        return state
    (found,) = new
    if found is not None or has_pair:
        context.emit((context.key, found))
    if found is None:
        context.forget()
    return [found is not None, None]
