"""Events of commands that move bins, as JSON-able fields of `schemas.status`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from meander.dataflow.migration.rounds import BinInTransit, Round, RunningMigration
from meander.state.keys.ids import Bin
from meander.state.times.time import to_millis

Event = dict[str, object]


def queued(running: RunningMigration, after: Sequence[str]) -> Event:
    """Return the event of a command that waits for others to end."""
    return {"type": "queued", "id": running.command.id, "after": list(after)}


def accepted(running: RunningMigration, time: int | None) -> Event:
    """Return the event of a command that starts at a time, or once its first bins are ready."""
    command = running.command
    return {
        "type": "accepted",
        "id": command.id,
        "time": None if time is None else to_millis(time),
        "at": time,
        "strategy": command.strategy,
        "precopy": command.precopy,
        "operator": command.operator,
        "bins": [int(bin) for bin in dict.fromkeys(command.bins)],
    }


def bin_unreadable(
    command: str, bin: Bin, operator: str, reason: str, kept_in_place: bool
) -> Event:
    """Return the event of a bin whose layers are unreadable and are written again."""
    return {
        "type": "bin_unreadable",
        "id": command,
        "bin": int(bin),
        "operator": operator,
        "reason": reason,
        "kept_in_place": kept_in_place,
    }


def bin_moved(round: Round, moved: BinInTransit, seconds: float) -> Event:
    """Return the event of a bin that its new owner has installed some seconds after its round
    started."""
    return {
        "type": "bin_moved",
        "id": round.command,
        "bin": int(moved.move.bin),
        "from": int(moved.move.source),
        "to": int(moved.move.target),
        "at": round.time,
        "bytes": moved.bytes,
        "keys": moved.keys,
        "ms": round_ms(seconds),
    }


def completed(running: RunningMigration, seconds: float, own: Callable[[Bin], Bin]) -> Event:
    """Return the event of a command that has completed, or that was aborted."""
    ended: Event = (
        {"type": "completed"}
        if running.aborted is None
        else {"type": "aborted", "by": running.aborted}
    )
    return ended | {
        "id": running.command.id,
        "ms": round_ms(seconds),
        "bins": running.bins,
        "bytes": running.bytes,
        "keys": running.keys,
        "unmoved": sorted(int(own(bin)) for bin in (*running.waiting, *running.kept_in_place)),
    }


def round_ms(seconds: float) -> float:
    """Convert seconds to milliseconds, with a precision of one microsecond."""
    return round(seconds * 1000, 3)
