"""`meander migrate`: parse its options, and print how bins move."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from rich.progress import Progress, TaskID

from meander.app.cli.follow import show_end
from meander.app.cli.views.rescale import sentence
from meander.app.cli.views.summary import MoveSummary
from meander.app.common.output import CommandOutput, at_millis, size
from meander.dataflow.execution_plan.bin_ranges import ranges
from meander.dataflow.metrics.counters import counted
from meander.schemas.errors import SetupError
from meander.schemas.status import (
    Aborted,
    Accepted,
    BinMoved,
    BinUnreadable,
    CommandRejected,
    Completed,
    Event,
    Heartbeat,
    Joined,
    JoinFailed,
    Migration,
    Planned,
    Queued,
    Rescaling,
)

MOST_BINS = 1 << 16
"""The bins of a flow, at most."""


def parse_bins(text: str) -> list[int] | str:
    """Parse `--bins`: numbers and ranges, or all bins. Raises SetupError.

    >>> parse_bins("0-2,7"), parse_bins("all")
    ([0, 1, 2, 7], 'all')
    """
    if text == "all":
        return text
    bins: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            remedy = "write numbers and ranges such as 0-2,7, or all"
            raise SetupError("--bins", f"{part.strip()!r} names no bins", remedy)
        low, high = int(first), int(last if dash else first)
        if not low <= high < MOST_BINS:
            remedy = f"write ascending ranges of numbers below {MOST_BINS}"
            raise SetupError("--bins", f"{part.strip()!r} names no bins", remedy)
        bins.extend(range(low, high + 1))
    return bins


def begins(accepted: Accepted) -> str:
    """Return the time at which the moves of a command start.

    >>> begins(Accepted(id="m", offset=0, time=None, at=None, strategy="batched", bins=[]))
    'as soon as its bins are prefetched'
    """
    if accepted.time is None:
        return "as soon as its bins are prefetched"
    return f"from {at_millis(accepted.time)} on"


def show(output: CommandOutput, events: Iterator[Event]) -> int:
    """Print events as they come, with a progress bar of bins. Return the exit code: 0 if the worker
    owns all bins of the command."""
    summary = MoveSummary(output)
    with output.bar("bins") as progress:
        shown = _Shown(output, progress, progress.add_task("command sent", total=None))
        for event in events:
            summary.take(event)
            shown.take(event)
        return shown.code


@dataclass(slots=True)
class _Shown:
    """A command in progress."""

    output: CommandOutput
    progress: Progress
    task: TaskID
    code: int = 0
    id: str = ""
    total: int = 0
    carried: int = 0
    """Bytes."""
    unread: set[int] = field(default_factory=set)
    """Bins that stay because they are unreadable."""

    def take(self, event: Event) -> None:
        """Follow one more event."""
        match event:
            case Rescaling() | Joined() | JoinFailed():
                self._start(event)
            case Accepted() | Queued():
                self._begin(event)
            case Heartbeat(moving=moving):
                for one in moving:
                    if one.id == self.id:
                        self.progress.update(self.task, description=self._stand(one))
            case BinMoved(bytes=count):
                self.carried += count
                described = f"moving, {size(self.carried)}"
                self.progress.update(self.task, advance=1, description=described)
            case BinUnreadable() as unreadable:
                what = "it stays" if unreadable.kept_in_place else "its owner writes it again"
                self.output.say(f"bin {unreadable.bin}: {what}: {unreadable.reason}")
                self.unread |= {unreadable.bin} if unreadable.kept_in_place else set()
            case Completed() | Aborted() | CommandRejected():
                self._end(event)

    def _start(self, event: Rescaling | Joined | JoinFailed) -> None:
        if not isinstance(event, Rescaling):
            self.output.say(sentence(event))
            return
        for worker in event.joining:
            self.output.say(f"worker {worker} does not exist, so the flow starts it")
        self.progress.update(self.task, description="the worker starts")

    def _begin(self, event: Accepted | Queued) -> None:
        if isinstance(event, Queued):
            self.output.say(f"queued: starts after {', '.join(event.after)}")
            return
        self.output.say(f"accepted: {begins(event)}")
        self.total, self.id = len(event.bins), event.id
        self.progress.update(self.task, total=self.total, description="moving")

    def _end(self, event: Completed | Aborted | CommandRejected) -> None:
        if isinstance(event, Completed):
            self.progress.update(self.task, total=event.bins, completed=event.bins)
            # One that waited for others until the end was never accepted.
            there = max(0, self.total - event.bins - len(event.unmoved))
            were = f" ({there} were already there)" if there else ""
            self.output.say(
                f"completed: {counted(event.bins, 'bin')}{were}, {size(event.bytes)},"
                f" {event.ms:,.0f} ms"
            )
            if event.unmoved:
                self.code = 1
                self.output.say(self._stay(event.unmoved))
            return
        self.code = 1
        self.progress.update(self.task, visible=False)
        if isinstance(event, CommandRejected):
            self.output.say(f"rejected: {event.reason}")
        else:
            self.output.say(f"aborted{_ended(event)}")

    def _stay(self, bins: list[int]) -> str:
        """Return how many bins stay, and why."""
        unread = len(self.unread.intersection(bins))
        reasons = [
            f"{count} because {why}"
            for count, why in (
                (unread, "they are unreadable"),
                (len(bins) - unread, "the flow's sources have ended"),
            )
            if count
        ]
        return f"{len(bins)} bins stay where they were: {', '.join(reasons)}"

    def _stand(self, one: Migration) -> str:
        eta = "" if one.eta is None else f", about {one.eta:g} s left"
        return f"moving, {size(self.carried)}, {counted(one.fetched, 'bin')} prefetched{eta}"


def _ended(event: Aborted) -> str:
    if not event.by:
        return f": {event.reason}"
    if not (event.bins or event.unmoved):
        return f" by {event.by}"
    moved = f"{event.bins or 0} bins have moved, {size(event.bytes or 0)}"
    return f" by {event.by}: {moved}; {len(event.unmoved or ())} stay"


def show_plan(output: CommandOutput, events: Iterator[Event]) -> int:
    """Print the plan of a command; return the exit code."""
    moves: list[tuple[int, int, int, int, int]] = []
    for event in events:
        match event:
            case Planned() as planned:
                moves += planned.moves
                if planned.last:
                    _print_plan(output, planned, moves)
            case CommandRejected(reason=reason):
                output.event(event)
                output.say(f"rejected: {reason}")
                return 1
    return 0


def _print_plan(
    output: CommandOutput, planned: Planned, moves: Sequence[tuple[int, int, int, int, int]]
) -> None:
    """Print the moves of a plan by the two workers, in JSON one by one; then its estimate."""
    if not output.as_json:
        output.table("plan", ["from", "to", "bins", "rounds", "bytes"], _between_workers(moves))
        output.say(_estimate(planned, len(moves)))
        return
    columns = ["round", "bin", "from", "to", "bytes"]
    for move in moves:
        output.line({"type": "move"} | dict(zip(columns, move, strict=True)))
    output.line(
        {
            "type": "plan", "id": planned.id, "rounds": planned.rounds, "bins": len(moves),
            "bytes": sum(count for *_, count in moves), "estimate_s": planned.estimate,
        }
    )  # fmt: skip


def _between_workers(moves: Sequence[tuple[int, int, int, int, int]]) -> list[list[object]]:
    """Return a row for each two workers, with ranges of the bins and of the rounds between them.

    >>> _between_workers([(0, 7, 1, 0, 100), (0, 8, 1, 0, 62), (1, 9, 1, 2, 0)])
    [['1', '0', '7-8', '0', '162 B'], ['1', '2', '9', '1', None]]
    """
    between: dict[tuple[int, int], list[tuple[int, int, int]]] = {}
    for round, bin, source, target, count in moves:
        between.setdefault((source, target), []).append((round, bin, count))
    return [
        [
            str(source), str(target), ranges(bin for _, bin, _ in those),
            ranges(round for round, _, _ in those),
            size(total) if (total := sum(count for *_, count in those)) else None,
        ]
        for (source, target), those in sorted(between.items())
    ]  # fmt: skip


def _estimate(planned: Planned, bins: int) -> str:
    took = "an unknown time, as no bin has moved yet"
    if planned.estimate is not None:
        took = f"about {planned.estimate:g} s at the rate of earlier moves"
    rounds = counted(planned.rounds, "round")
    return f"Dry run: {counted(bins, 'bin')} in {rounds} would take {took}."


def show_abort(output: CommandOutput, events: Iterator[Event]) -> int:
    """Print how an aborted command ends; return the exit code."""
    return show_end(output, events, _aborted)


def _aborted(event: Event) -> str:
    return f"{event.id} has ended{_ended(event)}" if isinstance(event, Aborted) else ""
