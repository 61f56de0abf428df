"""`meander migrate`: what its options mean, and how the move of bins is shown."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from rich.progress import Progress, TaskID

from meander.app.cli.follow import show_end
from meander.app.cli.views.rescale import sentence
from meander.app.common.output import CommandOutput, at_millis, size
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
"""What a flow may have at most."""


def parse_bins(text: str) -> list[int] | str:
    """What `--bins` means: numbers and ranges, or all of them.

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
            remedy = f"write ranges upwards, of numbers below {MOST_BINS}"
            raise SetupError("--bins", f"{part.strip()!r} names no bins", remedy)
        bins.extend(range(low, high + 1))
    return bins


def begins(accepted: Accepted) -> str:
    """From when on a command holds.

    >>> begins(Accepted(id="m", offset=0, time=None, at=None, strategy="batched", bins=[]))
    'as soon as its bins have been fetched'
    """
    if accepted.time is None:
        return "as soon as its bins have been fetched"
    return f"from {at_millis(accepted.time)} on"


def show(output: CommandOutput, events: Iterator[Event]) -> int:
    """Print events as they come, with a bar while bins move; the exit code, which is 0 where all
    bins are where they should be."""
    with output.bar("bins") as progress:
        shown = _Shown(output, progress, progress.add_task("waits to be accepted", total=None))
        for event in events:
            if not isinstance(event, Heartbeat):
                output.event(event)
            shown.take(event)
        return shown.code


@dataclass(slots=True)
class _Shown:
    """A command as far as it has come."""

    output: CommandOutput
    progress: Progress
    task: TaskID
    code: int = 0
    id: str = ""
    total: int = 0
    carried: int = 0
    """Bytes."""
    unread: set[int] = field(default_factory=set)
    """Bins that stay as they cannot be read."""

    def take(self, event: Event) -> None:
        """One more event."""
        match event:
            case Rescaling():
                self.progress.update(self.task, description="its worker starts")
            case Joined() | JoinFailed():
                self.output.say(sentence(event))
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
                what = "it stays" if unreadable.kept_in_place else "it is written anew"
                self.output.say(f"bin {unreadable.bin}: {what}: {unreadable.reason}")
                self.unread |= {unreadable.bin} if unreadable.kept_in_place else set()
            case Completed() | Aborted() | CommandRejected():
                self._end(event)

    def _begin(self, event: Accepted | Queued) -> None:
        if isinstance(event, Queued):
            self.output.say(f"queued: begins once {', '.join(event.after)} has ended")
            return
        self.output.say(f"accepted: {begins(event)}")
        self.total, self.id = len(event.bins), event.id
        self.progress.update(self.task, total=self.total, description="moving")

    def _end(self, event: Completed | Aborted | CommandRejected) -> None:
        if isinstance(event, Completed):
            self.progress.update(self.task, total=event.bins, completed=event.bins)
            # One that waited for others until the end was never accepted.
            there = max(0, self.total - event.bins - len(event.unmoved))
            were = f" ({there} were there already)" if there else ""
            self.output.say(
                f"completed: {event.bins} bins{were}, {size(event.bytes)}, {event.ms:,.0f} ms"
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
        """How many do, and why."""
        unread = len(self.unread.intersection(bins))
        reasons = [
            f"{count} as {why}"
            for count, why in (
                (unread, "they cannot be read"),
                (len(bins) - unread, "the flow's sources have ended"),
            )
            if count
        ]
        return f"{len(bins)} bins stay where they were: {', '.join(reasons)}"

    def _stand(self, one: Migration) -> str:
        eta = "" if one.eta is None else f", about {one.eta:g} s left"
        return f"moving, {size(self.carried)}, {one.fetched} bins fetched ahead{eta}"


def _ended(event: Aborted) -> str:
    if not event.by:
        return f": {event.reason}"
    moved = f"{event.bins} bins have moved, {size(event.bytes)}"
    return f" by {event.by}: {moved}; {len(event.unmoved)} stay"


def show_plan(output: CommandOutput, events: Iterator[Event]) -> int:
    """Print what a command would do; the exit code."""
    rows: list[list[object]] = []
    for event in events:
        match event:
            case Planned() as planned:
                rows += [
                    [*map(str, move), size(count) if count else None]
                    for *move, count in planned.moves
                ]
                if planned.last:
                    output.table("plan", ["round", "bin", "from", "to", "bytes"], rows)
                    output.say(_estimate(planned, len(rows)))
            case CommandRejected(reason=reason):
                output.say(f"rejected: {reason}")
                return 1
    return 0


def _estimate(planned: Planned, bins: int) -> str:
    took = "unknown, as nothing has moved yet"
    if planned.estimate is not None:
        took = f"about {planned.estimate:g} s, by what has moved so far"
    return f"Nothing has moved: {bins} bins in {planned.rounds} rounds would take {took}."


def show_abort(output: CommandOutput, events: Iterator[Event]) -> int:
    """Print how a command ends that is aborted; the exit code."""
    return show_end(output, events, _aborted)


def _aborted(event: Event) -> str:
    return f"{event.id} has ended: {_ended(event)}" if isinstance(event, Aborted) else ""
