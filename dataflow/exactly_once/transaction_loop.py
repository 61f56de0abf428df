"""When a worker commits what its sinks have written, and with which mark.

Guarantees that a transaction ends between two times at every sink, that its mark is said by that
very transaction, and that it, or one before it, brings along all that was ruled before the mark:
whoever sees a frontier pass a time has heard what was ruled before it. Nothing leaves before there
is a checkpoint to come back to: without one, nobody knows where reading began. What a checkpoint
has of the outboxes leaves in one transaction, which says so. Cost: one record per transaction.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from meander.dataflow.control.reports import OutboxesSent, OutboxFull, SendReport
from meander.dataflow.control.timestamp_overrides import Rulings, TimestampOverride
from meander.dataflow.exactly_once.commit_markers import CommitMarker
from meander.dataflow.exactly_once.interfaces import Transactions
from meander.dataflow.exactly_once.ordered_sink import OrderedSink
from meander.dataflow.exactly_once.outbox_sink import OutboxSink
from meander.dataflow.interfaces import Clock
from meander.state.keys.ids import ExecutionId, WorkerId

RULINGS = 2_000
"""Those heard after which they are committed though no result is."""


class TransactionLoop:
    """One worker's transactions; `every` is how many seconds apart they are at least."""

    def __init__(
        self,
        me: WorkerId,
        execution: ExecutionId,
        sinks: Sequence[OrderedSink],
        outboxes: Sequence[OutboxSink],
        transactions: Transactions | None,
        clock: Clock,
        every: float,
        allowed: bool,
        report: SendReport,
    ) -> None:
        """`allowed` says whether the flow has a checkpoint to come back to; `report` tells the
        coordinator. Without transactions there is nothing to do."""
        self._me, self._execution = me, execution
        self._sinks, self._transactions = sinks, transactions
        self._outboxes, self._report = outboxes, report
        self._frozen = self._going = self._gone = 0
        """Checkpoints: the last for which outboxes were frozen; those that they leave with by the
        next transaction, and by the one that is being committed, or 0."""
        self._told_full = False
        """Whether the coordinator knows that an outbox is full, and nothing has left since."""
        self._clock, self._every, self._allowed = clock, every, allowed
        self._heard = Rulings()
        self._leaving: tuple[TimestampOverride, ...] = ()
        """Those in the transaction that is being committed."""
        self._next = clock.monotonic()

    def hear(self, rulings: Iterable[TimestampOverride]) -> None:
        """Sources have ruled, here or elsewhere; what leaves by outboxes needs none of that."""
        if self._sinks:
            self._heard.add(rulings)

    @property
    def heard(self) -> list[TimestampOverride]:
        """Those that this worker does not know to be committed. A worker that joins commits them
        too: the transaction under way may be undone while that worker's is not."""
        return [*self._leaving, *self._heard]

    def freeze(self, checkpoint: int) -> None:
        """A checkpoint has what lies in the outboxes now."""
        self._frozen = checkpoint
        for outbox in self._outboxes:
            outbox.freeze(checkpoint)

    @property
    def held(self) -> list[tuple[int, int]]:
        """The bins of which outboxes hold results back, from which times on."""
        return [one for outbox in self._outboxes for one in outbox.held]

    def complete(self, checkpoint: int, passed: int, held: Mapping[int, int]) -> None:
        """One exists: there is something to come back to, and what it has may leave. All results of
        before `passed` had come to sinks; of the bins `held` outboxes lack those from times on."""
        self._allowed = True
        if checkpoint != self._frozen:
            # Of before this worker has joined.
            return
        leaving = [outbox.complete(checkpoint, passed, held) for outbox in self._outboxes]
        if any(leaving):
            self._going = checkpoint
        elif self._outboxes:
            self._sent(checkpoint)

    def _sent(self, checkpoint: int) -> None:
        """All is out that it has of the outboxes."""
        self._told_full = False
        self._report(OutboxesSent(checkpoint))

    def step(self) -> bool:
        """Begin a transaction's commit where one is due; whether that was so."""
        if self._transactions is None or self._transactions.busy:
            return False
        self._leaving = ()
        self._tell_sent()
        self._tell_full()
        if not self._due(self._transactions):
            return False
        self._next = self._clock.monotonic() + self._every
        times = {sink.name: sink.mark for sink in self._sinks}
        left = {sink.name: sink.left() for sink in self._sinks}
        self._gone, self._going = self._going, 0
        self._leaving = self._heard.take()
        mark = CommitMarker(self._execution, self._me, times, self._leaving, left, self._gone)
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

    def _tell_sent(self) -> None:
        """What was being committed is out."""
        gone, self._gone = self._gone, 0
        if gone:
            self._sent(gone)

    def _tell_full(self) -> None:
        """Nothing gets room in an outbox before another checkpoint."""
        if not self._told_full and any(outbox.full for outbox in self._outboxes):
            self._told_full = True
            self._report(OutboxFull())

    def _due(self, transactions: Transactions) -> bool:
        if not self._wanted(transactions) or self._clock.monotonic() < self._next:
            return False
        return all(sink.complete for sink in self._sinks)

    def _wanted(self, transactions: Transactions) -> bool:
        return self._allowed and (transactions.waiting or len(self._heard) >= RULINGS)
