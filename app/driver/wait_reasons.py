"""Describe why the driver of a flow waits: for frontiers, for bins and partitions that move, and
for workers that join or leave.

Each function returns waits by keys that change with the stage. Nothing is logged here.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence

from meander.app.driver.workers.worker_handle import WorkerHandle
from meander.connectors.links.links import member_name
from meander.dataflow.control.decisions import Decision, JoinDecision, LeaveDecision
from meander.dataflow.coordinator.partition_assignment import PartitionTransfer, Place
from meander.dataflow.coordinator.workers import Leaving
from meander.dataflow.metrics.stall_log import Wait
from meander.dataflow.migration.rounds import Round
from meander.schemas.log_lines import Value
from meander.schemas.status import BlockedFrontier, LongCall
from meander.state.keys.ids import WorkerId
from meander.state.times.time import to_millis

_UNTIL = {
    "source": "records come there or may be sent, or its source's idle_after is over",
    "operator": "the operator has processed earlier records",
    "sink": "the broker has confirmed the results",
    "input": "the worker takes its next turn",
    "migration": "the new owners have installed the bins",
    "partition_move": "the new reader has taken the partition over",
    "commands": "all workers know that no earlier command comes",
}
_WRITTEN = "the broker confirms the decision"


def frontiers(blockers: Iterable[BlockedFrontier]) -> dict[Hashable, Wait]:
    """Return the frontiers that something waits for. A frontier that has moved, or has another
    blocker, is another wait."""
    return {
        (one.probe, one.since_ms, one.kind, one.name, one.partition): Wait(
            "frontier", _UNTIL[one.kind], {"probe": one.probe, "held_by": one.by}
        )
        for one in blockers
        if one.awaited
    }


def calls(long: Iterable[LongCall]) -> dict[Hashable, Wait]:
    """Return the workers whose loop one long call, or one long turn, blocks."""
    return {
        (one.worker, one.operator): Wait(
            "operator_call",
            "the call returns; the worker does nothing else meanwhile",
            {"worker": one.worker, "operator": one.operator},
        )
        if one.operator
        else Wait(
            "worker_turn",
            "the loop takes its next turn; the process lives",
            {"worker": one.worker},
        )
        for one in long
    }


def migrations(rounds: Iterable[Round]) -> dict[Hashable, Wait]:
    """Return the moves in progress, each by its stage."""
    found: dict[Hashable, Wait] = {}
    for round in rounds:
        stage, wait = _stage(round)
        found[round.command, round.time, stage] = wait
    return found


def _stage(round: Round) -> tuple[str, Wait]:
    fields: dict[str, Value] = {"migration": round.command}
    at = f"{to_millis(round.time)} ms"
    if not round.sent:
        return "decided", Wait("decision", _WRITTEN, fields)
    if not round.decided:
        return "reached", Wait("sources", f"the sources have read up to {at}", fields)
    if not round.awaited:
        until = f"the stateful operators have passed {at}: earlier records and timers are done"
        return "passed", Wait("operators", until, fields)
    transit, count = round.awaited[min(round.awaited)], len(round.awaited)
    operator, way = min(transit.awaited), transit.move
    fields |= {"left": count, "bin": int(way.bin), "operator": operator}
    owner, old = member_name(way.target), member_name(way.source)
    until = f"{old} has passed {at} and written the state, and {owner} has installed it"
    return "installed", Wait("bins", until, fields)


def partitions(
    transfers: Iterable[tuple[PartitionTransfer, WorkerId | None]],
    sources: Sequence[str],
    unsent: Collection[Decision],
    unread: Mapping[Place, WorkerId],
) -> dict[Hashable, Wait]:
    """Return the partitions that move between workers, and new ones without a reader yet."""
    found: dict[Hashable, Wait] = {}
    for place, worker in unread.items():
        number, partition = place
        found[place, worker] = Wait(
            "new_partition",
            f"the Kafka client of {member_name(worker)} has noticed it, too",
            {"source": sources[number], "partition": partition},
        )
    for transfer, reader in transfers:
        order = transfer.order
        fields: dict[str, Value] = {"source": sources[order.source], "partition": order.partition}
        if transfer.id:
            fields["id"] = transfer.id
        if order in unsent:
            found[order, "decided"] = Wait("decision", _WRITTEN, fields)
            continue
        new = member_name(order.target)
        if reader is None:
            found[order, "begun"] = Wait("new_partition", f"{new} reads it", fields)
            continue
        found[order, "handed"] = Wait(
            "partition_move",
            f"all partitions of the source have reached {to_millis(order.time)} ms,"
            f" {member_name(reader)} has reported where it stopped, and {new} reads on",
            fields,
        )
    return found


def joins(unsent: Iterable[Decision]) -> dict[Hashable, Wait]:
    """Return the joining workers that are ready and whose decision is not written yet."""
    return {
        one: Wait("decision", _WRITTEN, {"joining_worker": one.worker})
        for one in unsent
        if isinstance(one, JoinDecision)
    }


def leaves(
    leaving: Mapping[WorkerId, Leaving], unsent: Collection[Decision]
) -> dict[Hashable, Wait]:
    """Return the leaving workers, each by its stage."""
    found: dict[Hashable, Wait] = {}
    for worker, leave in leaving.items():
        until, what = leave.until, "leaving_worker"
        if until is None:
            stage = "the other workers own all its bins and partitions"
        elif not leave.released:
            stage = f"every frontier has passed {to_millis(until)} ms, and its outbox is empty"
        elif LeaveDecision(worker, until) in unsent:
            what, stage = "decision", _WRITTEN
        else:
            stage = "its last contributions are done, and all members know it"
        found[worker, stage] = Wait(what, stage, {"worker": worker})
    return found


def exits(handles: Mapping[WorkerId, WorkerHandle]) -> dict[Hashable, Wait]:
    """Return the workers that have left, and whose final messages are on their way."""
    found: dict[Hashable, Wait] = {}
    for worker, handle in handles.items():
        if not handle.leaving:
            continue
        deaf = sorted(handles.keys() - {worker} - handle.acknowledged_by)
        if handle.done and deaf:
            until = f"{', '.join(map(member_name, deaf))} acknowledges it"
            found[worker, "heard"] = Wait("final_message", until, {"worker": worker})
        else:
            until = "the worker has sent it"
            found[worker, "done"] = Wait("final_message", until, {"worker": worker})
    return found
