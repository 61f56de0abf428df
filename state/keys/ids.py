"""Identifiers: one small type each for workers, bins, executions, checkpoints and layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, NewType

WorkerId = NewType("WorkerId", int)
"""A member of the computation: workers are 0..n-1, the coordinator is `COORDINATOR`."""

COORDINATOR = WorkerId(-1)


def member_name(member: WorkerId) -> str:
    """Return the name of a member for messages.

    >>> member_name(WorkerId(2)), member_name(COORDINATOR)
    ('worker 2', 'the coordinator')
    """
    return "the coordinator" if member == COORDINATOR else f"worker {member}"


Bin = NewType("Bin", int)
"""A group of keys that moves as one: 0 .. 2**bits - 1."""

ExecutionId = NewType("ExecutionId", int)
"""The number of an execution of a flow. No effect of an older execution may become visible (I8)."""


class CheckpointId(NamedTuple):
    """An identifier that names the n-th checkpoint of an execution and is never used again."""

    execution: ExecutionId
    number: int


@dataclass(frozen=True, slots=True, order=True)
class LayerId:
    """An identifier that names a layer. No two layers of any execution share one.

    >>> LayerId(ExecutionId(1), WorkerId(0), 7).key(2)
    b'layer/1/0/7/2'
    """

    execution: ExecutionId
    worker: WorkerId
    sequence: int

    def key(self, chunk: int) -> bytes:
        """Return the record key of a chunk on the state topic."""
        return f"layer/{self.execution}/{self.worker}/{self.sequence}/{chunk}".encode()


def execution_of(key: bytes) -> ExecutionId | None:
    """Return the execution that wrote a record of the state or in-flight topic, by its key. Return
    None for another key.

    >>> execution_of(LayerId(ExecutionId(3), WorkerId(0), 7).key(2)), execution_of(b"foreign")
    (3, None)
    """
    _, _, rest = key.partition(b"/")
    execution, _, _ = rest.partition(b"/")
    return ExecutionId(int(execution)) if execution.isdigit() else None
