"""Events of commands that move bins."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from meander.dataflow.migration.rounds import BinInTransit, Round, RunningMigration
from meander.schemas.status import Aborted, Accepted, BinMoved, Completed, Queued
from meander.state.keys.ids import Bin
from meander.state.times.time import to_millis


def queued(running: RunningMigration, after: Sequence[str]) -> Queued:
    """Return the event of a command that waits for others to end."""
    return Queued(running.command.id, running.command.offset, list(after))


def accepted(running: RunningMigration, time: int | None) -> Accepted:
    """Return the event of a command that starts at a time, or once its first bins are ready."""
    command = running.command
    return Accepted(
        command.id, command.offset, None if time is None else to_millis(time), time,
        command.strategy, list(dict.fromkeys(command.bins)), command.precopy, command.operator,
    )  # fmt: skip


def bin_moved(round: Round, moved: BinInTransit, seconds: float) -> BinMoved:
    """Return the event of a bin that its new owner has installed some seconds after its round
    started."""
    move = moved.move
    return BinMoved(
        round.command, move.bin, move.source, move.target, round.time, moved.bytes, moved.keys,
        round_ms(seconds),
    )  # fmt: skip


def completed(
    running: RunningMigration, seconds: float, own: Callable[[Bin], Bin]
) -> Completed | Aborted:
    """Return the event of a command that has completed, or that was aborted."""
    id, ms, by = running.command.id, round_ms(seconds), running.aborted
    unmoved: list[int] = [own(bin) for bin in (*running.waiting, *running.kept_in_place)]
    unmoved.sort()
    if by is None:
        return Completed(id, ms, running.bins, running.bytes, unmoved)
    return Aborted(
        id, by, ms, running.bins, running.bytes, unmoved, f"command {by!r} has aborted it",
        running.command.offset,
    )  # fmt: skip


def round_ms(seconds: float) -> float:
    """Convert seconds to milliseconds, with a precision of one microsecond."""
    return round(seconds * 1000, 3)
