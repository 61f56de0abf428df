"""How many proposals are in each extension of a pattern, counted in its steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from unittest import mock

from meander.dataflow.generic_join.prefixes import proposals_of
from meander.dataflow.generic_join.steps import NO_RELATION, Count, Found, Intersect, Propose
from meander.dataflow.records.batch import Batch
from meander.state.collections.cursor import Cursor
from meander.state.encoding.value_columns import ValueColumns
from tests.support.collections.pattern_flows import Control


class ProposalsInside:
    """Counts prefixes from their proposal until a step drops them, they propose, or they leave.

    Extensions have the number of nodes that they bind. All workers count together.
    """

    def __init__(self) -> None:
        self.now, self.most, self.largest = Counter[int](), Counter[int](), Counter[int]()
        """The proposals at present, the most at any time, and the most of one prefix."""

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count in the steps of all flows meanwhile."""
        # A test may have planted a bug there.
        counted, proposed, intersected = Count.__call__, Propose.__call__, Intersect.__call__

        def count(step: Count, batch: Batch, cursors: Sequence[Cursor]) -> Found:
            found = counted(step, batch, cursors)
            self._dropped(_nodes(found.batch, counted=True), len(batch) - len(found.rows))
            return found

        def propose(step: Propose, batch: Batch, cursors: Sequence[Cursor]) -> Found:
            found = proposed(step, batch, cursors)
            before, counts = _nodes(batch, counted=True), proposals_of(batch)
            assert len(found.rows) <= counts.sum(), "prefixes propose no more than was counted"
            self.largest[before + 1] = max(self.largest[before + 1], int(counts.max()))
            self._dropped(before, len(batch))
            self.now[before + 1] += len(found.rows)
            self.most[before + 1] = max(self.most[before + 1], self.now[before + 1])
            if _is_last(step):
                self._dropped(before + 1, len(found.rows))
            return found

        def intersect(step: Intersect, batch: Batch, cursors: Sequence[Cursor]) -> Found:
            found = intersected(step, batch, cursors)
            left = len(batch) if _is_last(step) else len(batch) - len(found.rows)
            self._dropped(_nodes(batch, counted=False), left)
            return found

        with ExitStack() as opened:
            for owner, step in ((Count, count), (Propose, propose), (Intersect, intersect)):
                opened.enter_context(mock.patch.object(owner, "__call__", step))
            yield

    def check(self, control: Control, workers: int) -> None:
        """Check the bound of flow control, and that no proposal is left."""
        for nodes, most in self.most.items():
            room = workers * control.in_flight * max(control.batch, self.largest[nodes])
            assert most <= room, f"{most} proposals of node {nodes}, but room for {room}"
            assert not self.now[nodes], "all proposals are dropped or leave"

    def _dropped(self, nodes: int, count: int) -> None:
        # Seeds are no proposals.
        if nodes > 2:
            self.now[nodes] -= count


def _is_last(step: Propose | Intersect) -> bool:
    return bool((step.next.arrangements == NO_RELATION).all())


def _nodes(batch: Batch, counted: bool) -> int:
    """Return the number of nodes of prefixes."""
    assert isinstance(batch.values, ValueColumns), "prefixes have typed columns"
    return len(batch.values.columns) - 3 - counted
