"""When a worker commits what its sinks have written, and with which mark.

Guarantees that a transaction ends between two times at every sink, that its mark is said by that
very transaction, and that it, or one before it, brings along all that was ruled before the mark:
whoever sees a frontier pass a time has heard what was ruled before it. Nothing leaves before there
is a checkpoint to come back to: without one, nobody knows where reading began. Cost: one record
per transaction.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dataflow.once.marks import Mark
from dataflow.once.sink import OnceSink
from dataflow.once.transactions import Transactions
from dataflow.protocols import Clock
from dataflow.rulings import Ruling, Rulings
from state.ids import Incarnation, WorkerId

RULINGS = 2_000
"""Those heard after which they are committed though no result is."""


class Committing:
    """One worker's transactions; `every` is how many seconds apart they are at least."""

    def __init__(
        self,
        me: WorkerId,
        incarnation: Incarnation,
        sinks: Sequence[OnceSink],
        transactions: Transactions | None,
        clock: Clock,
        every: float,
        allowed: bool,
    ) -> None:
        """`allowed` says whether the flow has a checkpoint to come back to; without transactions
        there is nothing to do."""
        self._me, self._incarnation = me, incarnation
        self._sinks, self._transactions = sinks, transactions
        self._clock, self._every, self._allowed = clock, every, allowed
        self._heard = Rulings()
        self._next = clock.monotonic()

    def hear(self, rulings: Iterable[Ruling]) -> None:
        """Sources have ruled, here or elsewhere."""
        if self._transactions is not None:
            self._heard.add(rulings)

    @property
    def heard(self) -> list[Ruling]:
        """Those that this worker has not committed: who joins has to commit them too."""
        return [*self._heard]

    def allow(self) -> None:
        """There is a checkpoint to come back to."""
        self._allowed = True

    def step(self) -> bool:
        """Begin a transaction's commit where one is due; whether that was so."""
        if self._transactions is None or not self._due(self._transactions):
            return False
        self._next = self._clock.monotonic() + self._every
        times = {sink.name: sink.mark for sink in self._sinks}
        left = {sink.name: sink.left() for sink in self._sinks}
        mark = Mark(self._incarnation, self._me, times, self._heard.take(), left)
        self._transactions.commit(mark)
        return True

    def wait_seconds(self) -> float | None:
        """Until the next is due, if anything waits for one."""
        if self._transactions is None or not self._wanted(self._transactions):
            return None
        return max(0.001, self._next - self._clock.monotonic())

    @property
    def busy(self) -> bool:
        """Whether something is being committed."""
        return self._transactions is not None and self._transactions.busy

    def close(self) -> None:
        """Give up what is not committed."""
        if self._transactions is not None:
            self._transactions.close()

    def _due(self, transactions: Transactions) -> bool:
        wanted = not transactions.busy and self._wanted(transactions)
        if not wanted or self._clock.monotonic() < self._next:
            return False
        return all(sink.complete for sink in self._sinks)

    def _wanted(self, transactions: Transactions) -> bool:
        return self._allowed and (transactions.waiting or len(self._heard) >= RULINGS)
