"""What the controller says of commands: events, JSON-able, in the words of `schemas.status`."""

from __future__ import annotations

from collections.abc import Sequence

from dataflow.reading import Handing
from dataflow.rounds import Round, Running, Transit
from state.ids import Bin
from state.time import to_millis

Event = dict[str, object]


def accepted(running: Running, time: int, bins: Sequence[Bin]) -> Event:
    """A command will be obeyed, from a time on."""
    command = running.command
    return {
        "type": "accepted",
        "id": command.id,
        "time": to_millis(time),
        "at": time,
        "strategy": command.strategy,
        "worker": int(command.worker),
        "bins": [int(bin) for bin in bins],
    }


def bin_moved(round: Round, bin: int, moved: Transit, seconds: float) -> Event:
    """All parts of a bin are its new owner's, so many seconds after its round began."""
    return {
        "type": "bin_moved",
        "id": round.moves.command,
        "bin": bin,
        "from": int(moved.source),
        "to": int(round.moves.target),
        "at": round.moves.time,
        "bytes": moved.bytes,
        "keys": moved.keys,
        "ms": round_ms(seconds),
    }


def completed(running: Running, seconds: float) -> Event:
    """All that a command asked for is done."""
    return {
        "type": "completed",
        "id": running.command.id,
        "ms": round_ms(seconds),
        "bins": running.bins,
        "bytes": running.bytes,
        "keys": running.keys,
        "unmoved": [int(bin) for bin in running.waiting],
    }


def partition_given(handing: Handing, source: str) -> Event:
    """A partition has changed hands, or is read since it has come to its topic."""
    order = handing.order
    new = order.offset is not None
    named: Event = (
        {"type": "partition_added"} if new else {"type": "partition_moved", "id": handing.id}
    )
    return named | {
        "source": source,
        "partition": int(order.partition),
        "worker": int(order.target),
        "time": to_millis(order.time),
        "at": order.time,
    }


def round_ms(seconds: float) -> float:
    """Seconds as milliseconds with a microsecond's precision."""
    return round(seconds * 1000, 3)
