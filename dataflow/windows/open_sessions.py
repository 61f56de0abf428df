"""The sessions of some keys while they are open in the store, as columns or one by one.

Invariant: a state is the start and the end of a session, in the first one of a key the number of
its other sessions, then the columns of the fold. Cost: one look-up per session, with room for those
that a pass may add.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final, Self, cast

import numpy as np

from meander.dataflow.operators.keyed.columnar import column_states
from meander.dataflow.operators.keyed.logic import Sealing
from meander.dataflow.records.batch import Int64s
from meander.dataflow.windows.columnar import OWN, name_prefix
from meander.dataflow.windows.folding import Folding, states_of
from meander.dataflow.windows.session_pass import Session, State
from meander.state.encoding.columns import ColumnLayout, Columns, column_of
from meander.state.store.store import Bins, Store

START: Final = 0
END: Final = 1
OTHERS: Final = 2


class OpenSessions:
    """The sessions of some keys while they are open in the store, with room for some of each."""

    def __init__(
        self, store: Store, folding: Folding, layout: ColumnLayout, sealing: Sealing,
        keys: Sequence[bytes], bins: Bins, room: Sequence[int],
    ) -> None:  # fmt: skip
        """`room[i]` is at least the number of sessions of `keys[i]`, or 1 and the key is not
        changed where it has others."""
        first, names = name_prefix(0), list[bytes]()
        for key, count in zip(keys, room, strict=True):
            names.append(first + key)
            names += [name_prefix(number) + key for number in range(1, count)]
        self._folding = folding
        self._batch = store.open_batch(names, np.repeat(bins, room))
        self._states = column_states(store, self._batch, names, layout, sealing)
        self._first: Int64s = (np.cumsum(room) - room).astype(np.int64)
        """The row of the first session of each key, shape (keys,)."""
        self._columns = self._states.read(np.arange(len(names)))
        self.has = self._batch.has(self._batch.slots[self._first])
        """Whether each key has sessions, shape (keys,)."""
        self.starts, self.ends, self.others = (
            cast(Int64s, column[self._first]) for column in self._columns[:OWN]
        )
        """Those of the first session of each key, and the number of others, shapes (keys,)."""
        self._rows: list[State] | None = None

    def __enter__(self) -> Self:
        self._batch.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._batch.__exit__(None, None, None)

    def states(self, numbers: Int64s) -> Columns:
        """Return the states of the fold of the first sessions of keys, as columns."""
        rows = self._first[numbers]
        return tuple(column[rows] for column in self._columns[OWN:])

    def set_alone(self, numbers: Int64s, starts: Int64s, ends: Int64s, states: Columns) -> None:
        """Set the only sessions of keys."""
        others = np.zeros(len(numbers), np.int64)
        self._states.write(self._first[numbers], (starts, ends, others, *states))

    def forget(self, numbers: Int64s) -> None:
        """Remove the only sessions of keys."""
        if len(numbers):
            self._batch.forget(self._batch.slots[self._first[numbers]])

    def of(self, number: int) -> list[Session]:
        """Return the sessions of a key."""
        if not self.has[number]:
            return []
        if self._rows is None:
            self._rows = states_of(self._columns)
        first = int(self._first[number])
        rows = self._rows[first : first + 1 + int(self.others[number])]
        return [Session(cast(int, r[START]), cast(int, r[END]), r[OWN:]) for r in rows]

    def set(self, changed: Mapping[int, Sequence[Session]]) -> None:
        """Set all sessions of some keys."""
        rows, own, states, removed = list[int](), list[State](), list[State](), list[int]()
        for number, sessions in changed.items():
            first, count = int(self._first[number]), len(sessions)
            for place, one in enumerate(sessions):
                rows.append(first + place)
                own.append((one.start, one.end, 0 if place else count - 1))
                states.append(one.state)
            if self.has[number]:
                removed += range(first + count, first + 1 + int(self.others[number]))
        if rows:
            columns = map(partial(column_of, dtype="int64"), zip(*own, strict=True))
            self._states.write(np.array(rows), (*columns, *self._folding.of(states)))
        if removed:
            self._batch.forget(self._batch.slots[removed])
