"""The lookup: an operator that looks prefixes up in arrangements, without a state of its own.

Guarantees that a prefix of time t meets all updates up to t, and none later: it waits until the
arrangements hold all updates of its time, on all workers, as migrations and restarts may be under
way. Invariant: waiting prefixes have a capability, so the arrangements tell their times apart.
Prefixes beyond `max_waiting` bytes wait on disk (I6). Work is done in slices of `SLICE` proposals.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from itertools import pairwise

import numpy as np

from meander.dataflow.flow_control.ready_rows import Weigh
from meander.dataflow.generic_join.steps import Found
from meander.dataflow.generic_join.waiting import WaitingOperator
from meander.dataflow.operators.buffer.rows import Rows
from meander.dataflow.operators.custom import OperatorServices
from meander.dataflow.records.batch import Batch
from meander.dataflow.records.loop_times import nested_time
from meander.state.collections.columns import Int64s
from meander.state.collections.cursor import Cursor
from meander.state.times.antichain import Antichain

SLICE = 1 << 16
"""The most proposals of a slice, where a slice has several rows."""
Step = Callable[[Batch, Sequence[Cursor]], Found]
"""From prefixes, and a cursor of each arrangement, to other prefixes."""


class Lookup(WaitingOperator):
    """A lookup on one worker."""

    def __init__(self, services: OperatorServices, step: Step, weigh: Weigh) -> None:
        """`weigh` returns how many rows each prefix may become."""
        super().__init__(services)
        self._read, self._step, self._weigh = services.arrangements, step, weigh

    def schedule(self) -> bool:
        """Receive prefixes, and look up a slice of those whose time is complete. Return whether
        the lookup worked."""
        if self._input.empty and not self._ready and self._waiting.empty:
            return False
        worked = self._receive() if not self._ready else False
        if not self._ready:
            passed, more = self._waiting.pop_passed(self._complete())
            self._ready += Rows.by_iterations(passed)
            worked |= bool(passed) or more
        if self._ready and not self._output.blocked():
            self._look_up()
            worked = True
        if worked:
            self._downgrade()
        return worked

    def _complete(self) -> Antichain:
        """Return the frontier before which all arrangements hold all updates."""
        return reduce(Antichain.meet, (read.frontier() for read in self._read))

    def _look_up(self) -> None:
        """Look up the next slice, and send what comes of it."""
        slice = [*self._next_slice()]
        batch = Batch.concat([rows.batch for rows in slice])
        found = self._step(batch, [read.cursor() for read in self._read])
        ends = np.cumsum([len(rows) for rows in slice])
        for rows, some in zip(slice, _split(found, ends), strict=True):
            if len(some):
                time = nested_time(int(some.times.min()), rows.iterations)
                self._output.send(self._capabilities.capability_for(rows.least_time), time, some)

    def _next_slice(self) -> Iterator[Rows]:
        """Remove and yield rows that become about `SLICE` together, at least one."""
        room = SLICE
        while self._ready and room > 0:
            rows = self._ready.popleft()
            # A prefix that waits has a weight of 1 or more.
            weights = np.cumsum(self._weigh(rows.batch.between(0, room)))
            count = int(np.searchsorted(weights, room, side="right"))
            if not count and room < SLICE:
                self._ready.appendleft(rows)
                return
            count = max(1, count)
            if count < len(rows):
                rows, rest = rows.split_at(count)
                self._ready.appendleft(rest)
            room -= int(weights[len(rows) - 1])
            yield rows


def _split(found: Found, ends: Int64s) -> Iterator[Batch]:
    """Yield the results of the rows up to each of some ends."""
    batch = found.batch
    if len(ends) == 1:
        yield batch
        return
    owners = np.searchsorted(ends, found.rows, side="right")
    if (owners[1:] < owners[:-1]).any():
        order = np.argsort(owners, kind="stable")
        batch, owners = batch.take(order), owners[order]
    bounds = np.searchsorted(owners, np.arange(len(ends) + 1)).tolist()
    for first, end in pairwise(bounds):
        yield batch.between(first, end)
