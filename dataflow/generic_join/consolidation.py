"""The consolidation of matches: each match of a time once, with the sum of its diffs.

Guarantees that the matches of a time leave once no other can come, so the order of their arrival
does not matter. Invariant: a capability covers the matches that wait; past `max_waiting` bytes they
wait on disk (I6). Cost: one sort of the matches of a time.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from meander.dataflow.generic_join.prefixes import Prefixes
from meander.dataflow.generic_join.waiting import WaitingOperator
from meander.dataflow.records.batch import Batch
from meander.state.collections.columns import Int64s


class MatchConsolidation(WaitingOperator):
    """A consolidation of matches on one worker. Its matches have no choice, and their nodes in the
    order of the pattern."""

    def schedule(self) -> bool:
        """Receive matches, and send those of passed times. Return whether it worked."""
        worked = self._receive()
        passed, more = self._waiting.pop_passed(self._input.frontier)
        self._ready += passed
        worked |= more
        if self._ready and not more and not self._output.blocked():
            self._send()
            worked = True
        if worked:
            self._downgrade()
        return worked

    def _send(self) -> None:
        """Send the matches of passed times."""
        batch = Batch.concat([rows.batch for rows in self._ready])
        least = int(batch.times.min())
        self._ready.clear()
        matches = Prefixes.of(batch, counted=False)
        (times, *nodes), diffs = sums((matches.times, *matches.nodes), matches.diffs)
        if len(times):
            once = Prefixes(times, np.zeros_like(times), tuple(nodes), diffs)
            time = int(times.min())
            self._output.send(self._capabilities.capability_for(least), time, once.batch(nodes[0]))


def sums(columns: Sequence[Int64s], diffs: Int64s) -> tuple[list[Int64s], Int64s]:
    """Return the distinct rows of some columns, sorted, and the sum of the diffs of each that is
    not 0.

    >>> one, two = np.array([7, 8, 7, 9]), np.array([1, 1, -1, 2])
    >>> [column.tolist() for column in sums((one,), two)[0]], sums((one,), two)[1].tolist()
    ([[8, 9]], [1, 2])
    """
    order = np.lexsort(columns[::-1])
    rows = [column[order] for column in columns]
    new = np.logical_or.reduce([column[1:] != column[:-1] for column in rows])
    starts = np.flatnonzero(np.append(len(order) > 0, new)[: len(order)])
    totals = np.add.reduceat(diffs[order], starts) if len(starts) else diffs
    left = np.flatnonzero(totals)
    return [column[starts[left]] for column in rows], totals[left]
