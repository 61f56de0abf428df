"""The decision log of a flow: the decisions of all its executions, as records of one topic.

Guarantees that each decision reads back as it was written. A decision is one record, so no reader
sees a part of it. No worker receives a decision before its record is durable.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import starmap
from typing import Any

from meander.app.recovery import joint_decisions
from meander.app.recovery.packed_numbers import pack_numbers, unpack_numbers
from meander.connectors.topics.control import DecisionTopic
from meander.dataflow.control.decisions import (
    CommandsDoneDecision,
    Decision,
    DropDecision,
    FirstCheckpointDecision,
    JoinDecision,
    JointDecision,
    LeaveDecision,
    LogicDecision,
    SavepointDecision,
    StartDecision,
)
from meander.dataflow.control.instructions import Revoke
from meander.dataflow.control.logic_change import LogicChange, LogicVersion
from meander.dataflow.control.partition_handoff import ReassignPartition
from meander.dataflow.control.reassignment import Moves
from meander.dataflow.exactly_once.commit_history import Written
from meander.dataflow.interfaces import Partition
from meander.schemas.errors import MeanderError
from meander.state.checkpoint.checkpoint import ReplayFrom
from meander.state.keys.ids import Bin, ExecutionId, WorkerId


class DecisionLog:
    """A writer of one execution's decisions; a `dataflow.control.decisions.WriteDecision`."""

    def __init__(self, decisions: DecisionTopic, execution: ExecutionId) -> None:
        self._decisions, self._execution = decisions, execution
        self.started = 0
        self.durable = 0

    def __call__(self, decision: Decision) -> Callable[[], bool]:
        """Start to write a decision; the result returns whether it is durable."""
        self.started += 1
        number = self.started
        self._decisions.append(to_bytes(self._execution, decision), self._done)
        return lambda: self.durable >= number

    def _done(self) -> None:
        self.durable += 1


def to_bytes(execution: ExecutionId, decision: Decision) -> bytes:
    """Encode a decision of an execution as a record of the decisions topic.

    >>> data = to_bytes(ExecutionId(5), JoinDecision(WorkerId(2), 7))
    >>> data
    b'{"execution": 5, "at": 7, "type": "join", "worker": 2}'
    >>> from_bytes(data)
    (5, JoinDecision(worker=2, time=7))
    """
    fields = {"execution": execution, "at": decision.time} | written(decision)
    return json.dumps(fields).encode()


def from_bytes(data: bytes) -> Written:
    """Decode a record of the decisions topic. Raises MeanderError where it is no decision."""
    try:
        fields = json.loads(data)
        return ExecutionId(fields["execution"]), _read(fields)
    except (ValueError, KeyError, TypeError) as error:
        raise MeanderError(
            "the decisions topic", f"one of its records is no decision: {data[:100]!r}",
            "read it with the release that wrote it",
        ) from error  # fmt: skip


def written(decision: Decision) -> dict[str, object]:
    """Return the fields of a decision, without those that all decisions have."""
    match decision:
        case StartDecision(
            _, owners, workers, number, sources, groups, replay_from, retained, topics, oldest
        ):
            start = {"owners": pack_numbers(owners), "workers": workers, "checkpoint": number,
                     "retained": retained, "oldest": oldest}  # fmt: skip
            names = {"sources": list(sources), "topics": list(topics), "groups": list(groups)}
            return {"type": "start", **start, **names, "replay_from": dict(replay_from)}
        case Moves(command, _, target, bins):
            return {"type": "moves", "id": command, "worker": target, "bins": pack_numbers(bins)}
        case LogicDecision(changes):
            return {"type": "logic", "changes": [*map(_written_change, changes)]}
        case Revoke(command):
            return {"type": "revoke", "id": command}
        case JointDecision():
            return joint_decisions.written(decision, written)
        case ReassignPartition(source, partition, _, target, offset):
            place = {"source": source, "partition": partition}
            new = {} if offset is None else {"offset": offset}
            return {"type": "reassign_partition", **place, "worker": target, **new}
        case JoinDecision(worker):
            return {"type": "join", "worker": worker}
        case LeaveDecision(worker):
            return {"type": "leave", "worker": worker}
        case (
            FirstCheckpointDecision()
            | SavepointDecision()
            | DropDecision()
            | CommandsDoneDecision()
        ):
            return _reference(decision)


def _written_change(change: LogicChange) -> dict[str, object]:
    before, version = change.before, change.version
    return {
        "id": change.command, "operator": change.operator, "generation": change.generation,
        "offset": change.offset,
        "before": {"name": before.name, "parameters": before.values},
        "version": {"name": version.name, "parameters": version.values},
    }  # fmt: skip


def _read_change(fields: dict[str, Any], at: int) -> LogicChange:
    before, version = (LogicVersion.of(**fields[one]) for one in ("before", "version"))
    return LogicChange(
        fields["id"],
        fields["operator"],
        at,
        before,
        version,
        fields["generation"],
        fields["offset"],
    )


def _reference(
    decision: FirstCheckpointDecision | SavepointDecision | DropDecision | CommandsDoneDecision,
) -> dict[str, object]:
    """Return the fields of a decision that refers to a record of another topic."""
    match decision:
        case FirstCheckpointDecision():
            return {"type": "first_checkpoint"}
        case SavepointDecision(savepoint, offset):
            return {"type": "savepoint", "savepoint": savepoint, "offset": offset}
        case DropDecision(savepoint):
            return {"type": "drop", "savepoint": savepoint}
        case CommandsDoneDecision(offset, pending):
            return {"type": "commands_done", "offset": offset, "pending": list(pending)}


def _read(fields: dict[str, Any]) -> Decision:
    at = fields["at"]
    match fields:
        case {"type": "start", "owners": owners, "workers": workers, "checkpoint": number}:
            names = tuple(fields["sources"]), tuple(fields["groups"])
            replay_from = tuple(starmap(ReplayFrom, fields["replay_from"].items()))
            retained, topics = fields["retained"], tuple(fields["topics"])
            owned, oldest = tuple(map(WorkerId, unpack_numbers(owners))), fields["oldest"]
            return StartDecision(
                at, owned, workers, number, *names, replay_from, retained, topics, oldest
            )
        case {"type": "moves", "id": id, "worker": worker, "bins": bins}:
            return Moves(id, at, WorkerId(worker), tuple(map(Bin, unpack_numbers(bins))))
        case {"type": "logic", "changes": [*changes]}:
            return LogicDecision(tuple(_read_change(one, at) for one in changes))
        case {"type": "revoke", "id": id}:
            return Revoke(id, at)
        case {"type": "joint"}:
            return joint_decisions.read(fields, at, lambda part: _read(part | {"at": at}))
        case {
            "type": "reassign_partition",
            "source": source,
            "partition": partition,
            "worker": worker,
        }:
            offset = fields.get("offset")
            return ReassignPartition(source, Partition(partition), at, WorkerId(worker), offset)
        case {"type": "join", "worker": worker}:
            return JoinDecision(WorkerId(worker), at)
        case {"type": "leave", "worker": worker}:
            return LeaveDecision(WorkerId(worker), at)
    return _read_reference(fields, at)


def _read_reference(fields: dict[str, Any], at: int) -> Decision:
    match fields:
        case {"type": "first_checkpoint"}:
            return FirstCheckpointDecision(at)
        case {"type": "savepoint", "savepoint": savepoint, "offset": offset}:
            return SavepointDecision(savepoint, offset, at)
        case {"type": "drop", "savepoint": savepoint}:
            return DropDecision(savepoint, at)
        case {"type": "commands_done", "offset": offset}:
            return CommandsDoneDecision(offset, tuple(fields.get("pending", ())), at)
    raise ValueError(f"no decision is of type {fields.get('type')!r}")
