"""The journal of a flow: what was decided in all of its lives, as it lies on the decisions topic.

Guarantees that a decision is durable before a worker hears of it, and that what is read back is
what was written. Each is one record, so it counts as a whole or not at all.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import starmap
from typing import Any

from meander.app.recovery.numbers import lengthened, shortened
from meander.connectors.topics.control import DecisionTopic
from meander.dataflow.control.decisions import (
    Begins,
    Decision,
    Drops,
    Joins,
    Keeps,
    LeaveDecision,
    Obeys,
    Takes,
)
from meander.dataflow.control.instructions import Revoke
from meander.dataflow.control.partition_handoff import ReassignPartition
from meander.dataflow.control.reassignment import Moves
from meander.dataflow.exactly_once.commit_history import Written
from meander.dataflow.interfaces import Partition
from meander.schemas.errors import MeanderError
from meander.state.checkpoint.checkpoint import ReplayFrom
from meander.state.keys.ids import Bin, ExecutionId, WorkerId


class Journal:
    """Writes decisions of a life; implements `dataflow.control.decisions.Journal`."""

    def __init__(self, decisions: DecisionTopic, execution: ExecutionId) -> None:
        self._decisions, self._execution = decisions, execution
        self.begun = 0
        self.durable = 0

    def __call__(self, decision: Decision) -> Callable[[], bool]:
        """Begin to write; whether it is durable is told by what is returned."""
        self.begun += 1
        number = self.begun
        self._decisions.append(to_bytes(self._execution, decision), self._done)
        return lambda: self.durable >= number

    def _done(self) -> None:
        self.durable += 1


def to_bytes(execution: ExecutionId, decision: Decision) -> bytes:
    """A life's decision as it lies on its topic.

    >>> data = to_bytes(ExecutionId(5), Joins(WorkerId(2), 7))
    >>> data
    b'{"execution": 5, "at": 7, "type": "joins", "worker": 2}'
    >>> from_bytes(data)
    (5, Joins(worker=2, time=7))
    """
    fields = {"execution": execution, "at": decision.time} | written(decision)
    return json.dumps(fields).encode()


def from_bytes(data: bytes) -> Written:
    """The inverse. Raises MeanderError for anything else."""
    try:
        fields = json.loads(data)
        return ExecutionId(fields["execution"]), _read(fields)
    except (ValueError, KeyError, TypeError) as error:
        raise MeanderError(
            "the decisions topic", f"a record of it is no decision: {data[:100]!r}",
            "read it with the release that wrote it",
        ) from error  # fmt: skip


def written(decision: Decision) -> dict[str, object]:
    """A decision as it lies on its topic, without what all have."""
    match decision:
        case Begins(_, owners, workers, number, sources, groups, anew, retained, topics, oldest):
            begun = {"owners": shortened(owners), "workers": workers, "checkpoint": number,
                     "retained": retained, "oldest": oldest}  # fmt: skip
            names = {"sources": list(sources), "topics": list(topics), "groups": list(groups)}
            return {"type": "begins", **begun, **names, "anew": dict(anew)}
        case Moves(command, _, target, bins):
            return {"type": "moves", "id": command, "worker": target, "bins": shortened(bins)}
        case Revoke(command):
            return {"type": "revoked", "id": command}
        case ReassignPartition(source, partition, _, target, offset):
            place = {"source": source, "partition": partition}
            new = {} if offset is None else {"offset": offset}
            return {"type": "partition", **place, "worker": target, **new}
        case Joins(worker):
            return {"type": "joins", "worker": worker}
        case LeaveDecision(worker):
            return {"type": "leaves", "worker": worker}
        case Takes() | Keeps() | Drops() | Obeys():
            return _place(decision)


def _place(decision: Takes | Keeps | Drops | Obeys) -> dict[str, object]:
    """A decision about a place on another topic, likewise."""
    match decision:
        case Takes():
            return {"type": "takes"}
        case Keeps(savepoint, offset):
            return {"type": "keeps", "savepoint": savepoint, "offset": offset}
        case Drops(savepoint):
            return {"type": "drops", "savepoint": savepoint}
        case Obeys(offset):
            return {"type": "obeys", "offset": offset}


def _read(fields: dict[str, Any]) -> Decision:
    at = fields["at"]
    match fields:
        case {"type": "begins", "owners": owners, "workers": workers, "checkpoint": number}:
            names = tuple(fields["sources"]), tuple(fields["groups"])
            anew = tuple(starmap(ReplayFrom, fields["anew"].items()))
            retained, topics = fields["retained"], tuple(fields["topics"])
            owned, oldest = tuple(map(WorkerId, lengthened(owners))), fields["oldest"]
            return Begins(at, owned, workers, number, *names, anew, retained, topics, oldest)
        case {"type": "moves", "id": id, "worker": worker, "bins": bins}:
            return Moves(id, at, WorkerId(worker), tuple(map(Bin, lengthened(bins))))
        case {"type": "revoked", "id": id}:
            return Revoke(id, at)
        case {"type": "partition", "source": source, "partition": partition, "worker": worker}:
            offset = fields.get("offset")
            return ReassignPartition(source, Partition(partition), at, WorkerId(worker), offset)
        case {"type": "joins", "worker": worker}:
            return Joins(WorkerId(worker), at)
        case {"type": "leaves", "worker": worker}:
            return LeaveDecision(WorkerId(worker), at)
    return _read_place(fields, at)


def _read_place(fields: dict[str, Any], at: int) -> Decision:
    match fields:
        case {"type": "takes"}:
            return Takes(at)
        case {"type": "keeps", "savepoint": savepoint, "offset": offset}:
            return Keeps(savepoint, offset, at)
        case {"type": "drops", "savepoint": savepoint}:
            return Drops(savepoint, at)
        case {"type": "obeys", "offset": offset}:
            return Obeys(offset, at)
    raise ValueError(f"no decision is of type {fields.get('type')!r}")
