"""What the driver of a running flow waits for, in words: frontiers that stand, bins and partitions
that move, workers that come and go.

Cost: a look at each of these; nothing is logged here.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence

from meander.app.driver.workers.worker_handle import WorkerHandle
from meander.connectors.links.links import member_name
from meander.dataflow.control.decisions import Decision, Joins, LeaveDecision
from meander.dataflow.coordinator.partition_assignment import PartitionTransfer, Place
from meander.dataflow.coordinator.workers import Leaving
from meander.dataflow.metrics.stall_log import Wait
from meander.dataflow.migration.rounds import Round
from meander.schemas.status import BlockedFrontier, LongCall
from meander.state.keys.ids import WorkerId
from meander.state.times.time import to_millis

_WHEN = {
    "source": "it moves when records come there or may be sent, or after its source's idle_after",
    "operator": "it moves when the operator is done with what came before",
    "sink": "it moves when the broker has confirmed them",
    "input": "it moves when the worker takes its next turn",
    "migration": "it moves when the bins' new owners have installed them",
    "handover": "it moves when the partition's new reader has taken it over",
    "commands": "it moves when the workers have heard that no command comes before",
}


_WRITTEN = "the broker confirms it"


def frontiers(blockers: Iterable[BlockedFrontier]) -> dict[Hashable, Wait]:
    """The frontiers that something waits for; one that has moved, or is held back by something else
    than before, is another wait."""
    return {
        (one.probe, one.since_ms, one.kind, one.name, one.partition): Wait(
            f"the frontier of {one.probe!r}, held back by {one.by}", _WHEN[one.kind]
        )
        for one in blockers
        if one.awaited
    }


def calls(long: Iterable[LongCall]) -> dict[Hashable, Wait]:
    """The workers whose loops one call, or one turn, keeps for long."""
    return {
        (one.worker, one.operator): Wait(
            f"operator {one.operator!r} on {member_name(WorkerId(one.worker))}, where one call of a"
            " function takes long",
            "that call returns; the worker does nothing else meanwhile",
        )
        if one.operator
        else Wait(
            f"the loop of {member_name(WorkerId(one.worker))}, which is silent",
            "it takes its next turn; the process lives",
        )
        for one in long
    }


def migrations(rounds: Iterable[Round]) -> dict[Hashable, Wait]:
    """The moves that are under way, each in the stage it has come to."""
    found: dict[Hashable, Wait] = {}
    for round in rounds:
        stage, wait = _stage(round)
        found[round.command, round.time, stage] = wait
    return found


def _stage(round: Round) -> tuple[str, Wait]:
    name, at = f"migration {round.command!r}", f"{to_millis(round.time)} ms"
    if not round.sent:
        return "decided", Wait(f"{name}: its decision to be on its topic", _WRITTEN)
    if not round.decided:
        when = f"the sources have read up to {at}, from which on it holds"
        return "reached", Wait(f"{name}: the flow's time", when)
    if not round.awaited:
        when = "records and timers of before are done"
        return "passed", Wait(f"{name}: the stateful operators to pass {at}", when)
    transit, count = round.awaited[min(round.awaited)], len(round.awaited)
    operator, way = min(transit.awaited), transit.move
    owner, old = member_name(way.target), member_name(way.source)
    one = f"bin {way.bin} of {operator!r} to {owner}"
    return "installed", Wait(
        f"{name}: bins on their way, {count} left, {one} among them",
        f"{old} has passed {at} and written its state, and {owner} has installed it",
    )


def partitions(
    handings: Iterable[tuple[PartitionTransfer, WorkerId | None]],
    sources: Sequence[str],
    unsent: Collection[Decision],
    unread: Mapping[Place, WorkerId],
) -> dict[Hashable, Wait]:
    """The partitions on their way from one worker to another, and new ones to their first."""
    found: dict[Hashable, Wait] = {}
    for place, worker in unread.items():
        number, partition = place
        to_be = member_name(worker)
        found[place, worker] = Wait(
            f"partition {partition} of source {sources[number]!r} (new): {to_be} to know of it",
            f"the Kafka client of {to_be}, which is to read it, has noticed it too",
        )
    for handing, reader in handings:
        order = handing.order
        by = f"({handing.id!r})" if handing.id else "(new)"
        what = f"partition {order.partition} of source {sources[order.source]!r} {by}"
        if order in unsent:
            found[order, "decided"] = Wait(f"{what}: its decision to be on its topic", _WRITTEN)
            continue
        new = member_name(order.target)
        if reader is None:
            found[order, "begun"] = Wait(f"{what} on its way to {new}", f"{new} reads it")
            continue
        old = member_name(reader)
        found[order, "handed"] = Wait(
            f"{what} on its way from {old} to {new}",
            f"all partitions of its source have come to {to_millis(order.time)} ms, {old} has said"
            f" where it stopped, and {new} reads on",
        )
    return found


def comings(unsent: Iterable[Decision]) -> dict[Hashable, Wait]:
    """The newcomers that are ready, and may not be told yet."""
    return {
        one: Wait(f"{member_name(one.worker)} to join: its decision to be on its topic", _WRITTEN)
        for one in unsent
        if isinstance(one, Joins)
    }


def goings(
    leaving: Mapping[WorkerId, Leaving], unsent: Collection[Decision]
) -> dict[Hashable, Wait]:
    """The workers that are to leave, each in the stage it has come to."""
    found: dict[Hashable, Wait] = {}
    for worker, leaver in leaving.items():
        name, until = member_name(worker), leaver.until
        if until is None:
            what, when = "to give its bins and partitions away", "the others have them all"
        elif not leaver.released:
            what = "to leave: all that comes to it, or that it has been told of, to be over"
            when = f"every frontier has passed {to_millis(until)} ms, and its outbox is empty"
        elif LeaveDecision(worker, until) in unsent:
            what, when = "to leave: its decision to be on its topic", _WRITTEN
        else:
            what = "to leave: what it holds to be over"
            when = "all that it has counted is done, and everybody knows of it"
        found[worker, what] = Wait(f"{name} {what}", when)
    return found


def partings(hands: Mapping[WorkerId, WorkerHandle]) -> dict[Hashable, Wait]:
    """The workers that the flow has let go, and whose last words are on their way."""
    found: dict[Hashable, Wait] = {}
    for worker, hand in hands.items():
        if not hand.leaves:
            continue
        name, deaf = member_name(worker), sorted(hands.keys() - {worker} - hand.released)
        if hand.done and deaf:
            others = ", ".join(map(member_name, deaf))
            found[worker, "heard"] = Wait(f"{name} to part", f"its last word has come to {others}")
        else:
            found[worker, "done"] = Wait(f"{name} to part", "it has said its last word")
    return found
