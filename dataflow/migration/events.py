"""What is said of commands that move bins: events, JSON-able, in the words of `schemas.status`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from meander.dataflow.migration.rounds import BinInTransit, Round, RunningMigration
from meander.state.keys.ids import Bin
from meander.state.times.time import to_millis

Event = dict[str, object]


def queued(running: RunningMigration, after: Sequence[str]) -> Event:
    """A command will be obeyed once others have ended."""
    return {"type": "queued", "id": running.command.id, "after": list(after)}


def accepted(running: RunningMigration, time: int | None) -> Event:
    """A command is obeyed from now on: from a time on, or from when its first bins are ready."""
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
    """Layers of a bin cannot be read; they are written anew."""
    return {
        "type": "bin_unreadable",
        "id": command,
        "bin": int(bin),
        "operator": operator,
        "reason": reason,
        "kept_in_place": kept_in_place,
    }


def bin_moved(round: Round, moved: BinInTransit, seconds: float) -> Event:
    """All parts of a bin are its new owner's, so many seconds after its round began."""
    return {
        "type": "bin_moved",
        "id": round.command,
        "bin": int(moved.way.bin),
        "from": int(moved.way.source),
        "to": int(moved.way.target),
        "at": round.time,
        "bytes": moved.bytes,
        "keys": moved.keys,
        "ms": round_ms(seconds),
    }


def completed(running: RunningMigration, seconds: float, own: Callable[[Bin], Bin]) -> Event:
    """All that a command asked for is done, or what was done of it when it was aborted."""
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
        "unmoved": sorted(int(own(bin)) for bin in (*running.waiting, *running.stuck)),
    }


def round_ms(seconds: float) -> float:
    """Seconds as milliseconds with a microsecond's precision."""
    return round(seconds * 1000, 3)
