"""The replay check: the replay of an execution must give the results that earlier executions
committed.

Guarantees that a difference it finds comes from a function that gave other results than before.
Suppressed results are summed up by the worker that committed them
(`CommittedResults.committed_by`). Each sum equals that of the worker's commit markers, as far as
all results of a transaction come again (`History.claims`). Invariant: each worker that was ever a
member reports the suppressed results of a sink once, when it can suppress no more. That is before
it leaves, since no worker leaves at or before a marker of earlier executions. The coordinator
compares after all reports. Cost: suppressed results are encoded; one report per worker, sink and
execution.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from meander.dataflow.control.reports import ResultsSuppressed
from meander.dataflow.exactly_once.checksum import Checksum, CommittedChecksum
from meander.dataflow.exactly_once.commit_history import CommittedResults, History, PreviousWorker
from meander.dataflow.exactly_once.interfaces import ChecksummedWriter
from meander.dataflow.operators.sink import without_refused
from meander.dataflow.records.batch import Batch, Int64s
from meander.schemas.errors import MeanderError
from meander.schemas.row_error import RowError
from meander.schemas.status import ReplayChecked
from meander.state.checkpoint.checkpoint import ReplayFrom
from meander.state.keys.ids import WorkerId, member_name

NEVER = 1 << 62


class Replay:
    """A sum of the suppressed results of one sink on one worker."""

    def __init__(self, sink: str, committed: CommittedResults, writer: ChecksummedWriter) -> None:
        self._sink, self._committed, self._writer = sink, committed, writer
        claims = (committed.claims.get(one) for one in committed.previous_workers)
        self._since = np.array([NEVER if one is None else one.since for one in claims], np.int64)
        """By number of a previous worker, the time from which on its results count."""
        self._found = defaultdict[int, Checksum](Checksum)
        self._over = False
        self._reported = not committed.replays

    def add(self, committed_by: Int64s, batch: Batch) -> None:
        """Add suppressed results; `committed_by`, shape (n,), holds the number of the previous
        worker of each."""
        counted = batch.times >= self._since[committed_by]
        for number in np.unique(committed_by[counted]).tolist():
            rows = np.flatnonzero(counted & (committed_by == number))
            self._found[number] += _checksum(self._writer, batch.take(rows))

    def end(self) -> None:
        """Note that no more results are suppressed here."""
        self._over = True

    def report(self) -> ResultsSuppressed | None:
        """Return the report for the coordinator, once."""
        if self._reported or not self._over:
            return None
        self._reported = True
        of = self._committed.previous_workers
        found = [
            (of[number].execution, of[number].worker, checksum.count, checksum.digest)
            for number, checksum in self._found.items()
        ]
        return ResultsSuppressed(self._sink, found)


class Replays:
    """A comparison of the replayed results of all sinks, at the coordinator."""

    def __init__(
        self,
        history: History,
        before: Mapping[str, Sequence[str]],
        members: Iterable[WorkerId],
        allow_nondeterminism: bool,
    ) -> None:
        """`before` maps each sink to the operators before it.

        With `allow_nondeterminism` a flow whose results differ continues.
        """
        self._history, self._before = history, before
        self._allow_nondeterminism = allow_nondeterminism
        self._members = {*members}
        """The workers that are active or have left."""
        self._claims = {sink: history.claims(sink) for sink in before} if history.replays else {}
        """The committed results that have not been compared."""
        self._reported = defaultdict[str, set[WorkerId]](set)
        self._found = defaultdict[tuple[str, PreviousWorker], Checksum](Checksum)

    @property
    def awaited(self) -> list[str]:
        """The sinks whose committed results have not all been compared."""
        return [sink for sink, claims in self._claims.items() if claims]

    def join(self, worker: WorkerId) -> None:
        """Add a worker, at which results may come again."""
        self._members.add(worker)

    def replay_from(self, until: int) -> tuple[ReplayFrom, ...]:
        """Return the time from which on a checkpoint holds all results of each sink, except for
        workers that report their own.

        Earlier executions and workers that left have dropped no later result.
        """
        return tuple(
            ReplayFrom(sink, max(self._history.replay_from(sink), until)) for sink in self._before
        )

    def report(self, worker: WorkerId, report: ResultsSuppressed) -> list[ReplayChecked]:
        """Add a worker's report; return the events once all workers have reported.

        Raise `MeanderError` where the replayed results differ from the committed ones.
        """
        sink = report.sink
        self._reported[sink].add(worker)
        for execution, number, count, digest in report.tallies:
            previous = PreviousWorker(execution, number)
            self._found[sink, previous] += Checksum(count, digest)
        if not self._reported[sink] >= self._members:
            return []
        return self._compared(sink, self._claims.pop(sink, {}))

    def _compared(
        self, sink: str, claims: Mapping[PreviousWorker, CommittedChecksum]
    ) -> list[ReplayChecked]:
        wrong = [
            _difference(previous, out.checksum, found)
            for previous, out in claims.items()
            if out.checksum != (found := self._found[sink, previous])
        ]
        if wrong and not self._allow_nondeterminism:
            raise self._differs(sink, wrong)
        out = sum(one.checksum.count for one in claims.values())
        return [ReplayChecked(sink, out, wrong)] if out else []

    def _differs(self, sink: str, wrong: Iterable[str]) -> MeanderError:
        named = ", ".join(map(repr, self._before[sink])) or "what its source gives"
        return MeanderError(
            f"sink {sink!r}",
            f"the replay differs from the committed results: {'; '.join(wrong)}",
            f"have {named} give the same for the same records, without a clock, random numbers or"
            " the order of a set, or declare them nondeterministic; where the flow has changed, may"
            " give others, or has lost records that it had read, run it with"
            " --allow-nondeterminism",
        )


def _difference(of: PreviousWorker, out: Checksum, found: Checksum) -> str:
    again = f"{found.count:,} came again" if found.count != out.count else "as many, but others"
    return (
        f"{member_name(of.worker)} of execution {of.execution} committed {out.count:,}, and {again}"
    )


def _checksum(writer: ChecksummedWriter, batch: Batch) -> Checksum:
    """Return the checksum of the rows that can be encoded: no others were written."""
    while True:
        try:
            return writer.checksum(batch)
        except RowError as refused:
            batch = without_refused(batch, refused)
