"""What the driver of a running flow waits for, in words: frontiers that stand, bins that move.

Cost: a look at each round of moves and at each frontier; nothing is logged here.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from connectors.links import member_name
from dataflow.rounds import Round
from dataflow.waits import Wait
from schemas.status import HeldBack
from state.ids import WorkerId
from state.time import to_millis

_WHEN = {
    "source": "it moves when records come there or may be sent, or after its source's idle_after",
    "operator": "it moves when the operator is done with what came before",
    "sink": "it moves when the broker has confirmed them",
    "input": "it moves when the worker takes its next turn",
    "migration": "it moves when the bins' new owners have installed them",
    "handover": "it moves when the partition's new reader has taken it over",
    "commands": "it moves when the workers have heard that no command comes before",
}


def frontiers(held: Iterable[HeldBack]) -> dict[Hashable, Wait]:
    """The frontiers that something waits for; one that has moved, or is held back by something else
    than before, is another wait."""
    return {
        (one.probe, one.since_ms, one.kind, one.name, one.partition): Wait(
            f"the frontier of {one.probe!r}, held back by {one.by}", _WHEN[one.kind]
        )
        for one in held
        if one.awaited
    }


def migrations(rounds: Iterable[Round]) -> dict[Hashable, Wait]:
    """The moves that are under way, each in the stage it has come to."""
    found: dict[Hashable, Wait] = {}
    for round in rounds:
        stage, wait = _stage(round)
        found[round.moves.command, round.moves.time, stage] = wait
    return found


def _stage(round: Round) -> tuple[str, Wait]:
    moves = round.moves
    name, at = f"migration {moves.command!r}", f"{to_millis(moves.time)} ms"
    if not round.sent:
        return "decided", Wait(f"{name}: its decision to be on its topic", "the broker confirms it")
    if not round.decided:
        when = f"the sources have read up to {at}, from which on it holds"
        return "reached", Wait(f"{name}: the flow's time", when)
    if not round.awaited:
        when = "records and timers of before are done"
        return "passed", Wait(f"{name}: the stateful operators to pass {at}", when)
    operator, bin = min(round.awaited)
    count = len({bin for _, bin in round.awaited})
    owner, old = member_name(moves.target), member_name(WorkerId(round.sources[bin]))
    return "installed", Wait(
        f"{name}: bins on their way to {owner}, {count} left, bin {bin} of {operator!r} among them",
        f"{old} has passed {at} and written its state, and {owner} has installed it",
    )
