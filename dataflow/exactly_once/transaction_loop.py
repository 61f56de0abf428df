"""The transaction loop: when a worker commits the results of its sinks, and with which marker.

Guarantees that a transaction ends between two times at every sink, and that its marker commits with
it. Guarantees that this or an earlier marker includes all timestamp overrides before its time: a
member that sees a frontier pass a time has received earlier overrides. No result leaves before the
first checkpoint: without one, a restart could not know where reading started. The outbox contents
of a checkpoint leave in one transaction, whose marker names the checkpoint. A transaction starts
once all dead letters of the sinks are durable, as no replay of a committed time repeats them. Cost:
one record per transaction.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from meander.dataflow.control.reports import OutboxesSent, OutboxFull, SendReport
from meander.dataflow.control.timestamp_overrides import PendingOverrides, TimestampOverride
from meander.dataflow.exactly_once.commit_markers import CommitMarker
from meander.dataflow.exactly_once.interfaces import Transactions
from meander.dataflow.exactly_once.ordered_sink import OrderedSink
from meander.dataflow.exactly_once.outbox_sink import OutboxSink
from meander.dataflow.interfaces import Clock
from meander.dataflow.operators.error_policy import SinkDeadLetters
from meander.state.keys.ids import ExecutionId, WorkerId

OVERRIDES = 2_000
"""The number of received overrides after which a transaction commits even without results."""


class TransactionLoop:
    """A loop of one worker's transactions, which are at least `every` seconds apart."""

    def __init__(
        self,
        me: WorkerId,
        execution: ExecutionId,
        sinks: Sequence[OrderedSink],
        dead: SinkDeadLetters,
        outboxes: Sequence[OutboxSink],
        transactions: Transactions | None,
        clock: Clock,
        every: float,
        allowed: bool,
        report: SendReport,
    ) -> None:
        """`allowed` states whether the flow has a checkpoint to restart from; `report` sends to the
        coordinator.

        Without transactions the loop does nothing.
        """
        self._me, self._execution = me, execution
        self._sinks, self._dead, self._transactions = sinks, dead, transactions
        self._outboxes, self._report = outboxes, report
        self._frozen = self._next_checkpoint = self._committing_checkpoint = 0
        """The last checkpoint that froze the outboxes; the one whose outbox contents the next
        transaction sends, and the one in the current commit, or 0."""
        self._reported_full = False
        """Whether the coordinator knows that an outbox is full and no result has left since."""
        self._clock, self._every, self._allowed = clock, every, allowed
        self._overrides = PendingOverrides()
        self._committing_overrides: tuple[TimestampOverride, ...] = ()
        """The overrides in the transaction that is being committed."""
        self._next = clock.monotonic()

    def add_overrides(self, overrides: Iterable[TimestampOverride]) -> None:
        """Add overrides of any source; outboxes do not need them."""
        if self._sinks:
            self._overrides.add(overrides)

    @property
    def uncommitted_overrides(self) -> list[TimestampOverride]:
        """The overrides that may not be committed.

        A joining worker commits them too: the current transaction may be undone while that worker's
        is not.
        """
        return [*self._committing_overrides, *self._overrides]

    def freeze(self, checkpoint: int) -> None:
        """Freeze the contents of the outboxes for a checkpoint."""
        self._frozen = checkpoint
        for outbox in self._outboxes:
            outbox.freeze(checkpoint)

    @property
    def held_back(self) -> list[tuple[int, int]]:
        """The bins whose results outboxes hold back, and from which times on."""
        return [one for outbox in self._outboxes for one in outbox.held_back]

    def complete(self, checkpoint: int, passed: int, held: Mapping[int, int]) -> None:
        """Handle a completed checkpoint: a restart is possible, and its outbox contents may leave.

        All results before `passed` had reached sinks. Outboxes lack results of the bins in `held`
        from the given times on.
        """
        self._allowed = True
        if checkpoint != self._frozen:
            # This worker joined after that checkpoint.
            return
        leaving = [outbox.complete(checkpoint, passed, held) for outbox in self._outboxes]
        if any(leaving):
            self._next_checkpoint = checkpoint
        elif self._outboxes:
            self._report_sent(checkpoint)

    def _report_sent(self, checkpoint: int) -> None:
        """Report that the outbox contents of a checkpoint are all committed."""
        self._reported_full = False
        self._report(OutboxesSent(checkpoint))

    def step(self) -> bool:
        """Start a commit where one is due; return whether it was."""
        self._dead.poll()
        if self._transactions is None or self._transactions.busy:
            return False
        self._committing_overrides = ()
        self._report_committed()
        self._report_full()
        if not self._due(self._transactions):
            return False
        self._next = self._clock.monotonic() + self._every
        times = {sink.name: sink.written_before for sink in self._sinks}
        written = {sink.name: sink.drain_written() for sink in self._sinks}
        self._committing_checkpoint, self._next_checkpoint = self._next_checkpoint, 0
        self._committing_overrides = self._overrides.drain()
        marker = CommitMarker(
            self._execution,
            self._me,
            times,
            self._committing_overrides,
            written,
            self._committing_checkpoint,
        )
        self._transactions.commit(marker)
        return True

    def wait_seconds(self) -> float | None:
        """Return the seconds until the next commit is due; None where nothing waits for one."""
        if self._transactions is None or not self._wanted(self._transactions):
            return None
        return max(0.001, self._next - self._clock.monotonic())

    @property
    def busy(self) -> bool:
        """Whether a commit is under way."""
        return self._transactions is not None and self._transactions.busy

    def close(self) -> None:
        """Give up what is not committed."""
        if self._transactions is not None:
            self._transactions.close()

    def _report_committed(self) -> None:
        """Report the outbox contents whose commit has completed."""
        committed, self._committing_checkpoint = self._committing_checkpoint, 0
        if committed:
            self._report_sent(committed)

    def _report_full(self) -> None:
        """Report once that an outbox is full: only another checkpoint can empty it."""
        if not self._reported_full and any(outbox.full for outbox in self._outboxes):
            self._reported_full = True
            self._report(OutboxFull())

    def _due(self, transactions: Transactions) -> bool:
        if not self._wanted(transactions) or self._clock.monotonic() < self._next:
            return False
        return self._dead.durable and all(sink.complete for sink in self._sinks)

    def _wanted(self, transactions: Transactions) -> bool:
        return self._allowed and (transactions.waiting or len(self._overrides) >= OVERRIDES)
