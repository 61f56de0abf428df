"""What comes again of results that were out: a life's replay must give what earlier lives gave.

Guarantees, where a difference is found, that some function gave other results than before: what is
suppressed is summed up by who had committed it (`CommittedResults.whose`), and each of these sums
is equal to that of its transactions' marks, of all those whose results all come again
(`History.claims`). Invariant: each worker that has ever been a member says once what it has
suppressed of a sink, when it can suppress nothing more, and so before it leaves, as nobody does at
or before a mark of earlier lives; the coordinator compares once all have. Cost: results that are
suppressed are encoded; a report per worker, sink and life.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from meander.dataflow.control.reports import ResultsSuppressed
from meander.dataflow.exactly_once.checksum import Checksum, Out
from meander.dataflow.exactly_once.commit_history import CommittedResults, History, PreviousWorker
from meander.dataflow.exactly_once.interfaces import ChecksummedWriter
from meander.dataflow.operators.sink import without
from meander.dataflow.records.batch import Batch, Int64s
from meander.schemas.errors import MeanderError
from meander.schemas.refused import RowRefused
from meander.state.checkpoint.checkpoint import ReplayFrom
from meander.state.keys.ids import WorkerId, member_name

NEVER = 1 << 62
Event = dict[str, object]


class Replay:
    """Of one sink on one worker."""

    def __init__(self, sink: str, earlier: CommittedResults, writer: ChecksummedWriter) -> None:
        self._sink, self._earlier, self._writer = sink, earlier, writer
        claims = (earlier.claims.get(one) for one in earlier.predecessors)
        self._since = np.array([NEVER if one is None else one.since for one in claims], np.int64)
        """By number of who has committed: from when on what it has counts."""
        self._found = defaultdict[int, Checksum](Checksum)
        self._over = False
        self._told = not earlier.replays

    def add(self, whose: Int64s, batch: Batch) -> None:
        """Results are suppressed, as they are out; `whose`, shape (n,), says who has committed
        each."""
        counted = batch.times >= self._since[whose]
        for number in np.unique(whose[counted]).tolist():
            rows = np.flatnonzero(counted & (whose == number))
            self._found[number] += _tallied(self._writer, batch.take(rows))

    def end(self) -> None:
        """Nothing more is suppressed here."""
        self._over = True

    def report(self) -> ResultsSuppressed | None:
        """What the coordinator is told, once."""
        if self._told or not self._over:
            return None
        self._told = True
        of = self._earlier.predecessors
        found = [
            (of[number].life, of[number].worker, tally.count, tally.digest)
            for number, tally in self._found.items()
        ]
        return ResultsSuppressed(self._sink, found)


class Replays:
    """Of all sinks, at the coordinator."""

    def __init__(
        self,
        history: History,
        before: Mapping[str, Sequence[str]],
        members: Iterable[WorkerId],
        allow_nondeterminism: bool,
    ) -> None:
        """`before` are the sinks, and of each the operators before it; with
        `allow_nondeterminism` a flow whose results differ goes on."""
        self._history, self._before = history, before
        self._allow_nondeterminism = allow_nondeterminism
        self._members = {*members}
        """Who works, or has left."""
        self._claims = {sink: history.claims(sink) for sink in before} if history.replays else {}
        """What has not been compared."""
        self._reported = defaultdict[str, set[WorkerId]](set)
        self._found = defaultdict[tuple[str, PreviousWorker], Checksum](Checksum)

    @property
    def awaited(self) -> list[str]:
        """The sinks of which not all has been compared that was out."""
        return [sink for sink, claims in self._claims.items() if claims]

    def join(self, worker: WorkerId) -> None:
        """A worker takes part from now on, and may be who something comes again at."""
        self._members.add(worker)

    def anew(self, until: int) -> tuple[ReplayFrom, ...]:
        """From when on a checkpoint has all results of a sink made anew, as far as workers do not
        say so: those of before this life, and those who have left, let go of nothing later."""
        return tuple(
            ReplayFrom(sink, max(self._history.anew(sink), until)) for sink in self._before
        )

    def report(self, worker: WorkerId, report: ResultsSuppressed) -> list[Event]:
        """A worker says what it has suppressed of a sink; what is to be said once all have. Raises
        MeanderError where it is not what was out."""
        sink = report.sink
        self._reported[sink].add(worker)
        for life, number, count, digest in report.tallies:
            predecessor = PreviousWorker(life, number)
            self._found[sink, predecessor] += Checksum(count, digest)
        if not self._reported[sink] >= self._members:
            return []
        return self._compared(sink, self._claims.pop(sink, {}))

    def _compared(self, sink: str, claims: Mapping[PreviousWorker, Out]) -> list[Event]:
        wrong = [
            _difference(predecessor, out.tally, found)
            for predecessor, out in claims.items()
            if out.tally != (found := self._found[sink, predecessor])
        ]
        if wrong and not self._allow_nondeterminism:
            raise self._differs(sink, wrong)
        out = sum(one.tally.count for one in claims.values())
        return (
            [{"type": "replay_checked", "sink": sink, "results": out, "wrong": wrong}]
            if out
            else []
        )

    def _differs(self, sink: str, wrong: Iterable[str]) -> MeanderError:
        named = ", ".join(map(repr, self._before[sink])) or "what its source gives"
        return MeanderError(
            f"sink {sink!r}",
            f"the replay does not give the results that were out: {'; '.join(wrong)}",
            f"have {named} give the same for the same records, without a clock, random numbers or"
            " the order of a set, or declare them nondeterministic; where the flow has changed, may"
            " give others, or has lost records that it had read, run it with"
            " --allow-nondeterminism",
        )


def _difference(of: PreviousWorker, out: Checksum, found: Checksum) -> str:
    again = f"{found.count:,} came again" if found.count != out.count else "as many, but others"
    return f"of {member_name(of.worker)} in life {of.life} {out.count:,}, and {again}"


def _tallied(writer: ChecksummedWriter, batch: Batch) -> Checksum:
    """Of the rows that can be written: no others were out."""
    while True:
        try:
            return writer.tally(batch)
        except RowRefused as refused:
            batch = without(batch, refused)
