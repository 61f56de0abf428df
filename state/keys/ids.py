"""Identifiers: one small type each for workers, bins, executions, checkpoints and layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, NewType

WorkerId = NewType("WorkerId", int)
"""A member of the computation: workers are 0..n-1, the coordinator is `COORDINATOR`."""

COORDINATOR = WorkerId(-1)


def member_name(member: WorkerId) -> str:
    """How a member is called in messages.

    >>> member_name(WorkerId(2)), member_name(COORDINATOR)
    ('worker 2', 'the coordinator')
    """
    return "the coordinator" if member == COORDINATOR else f"worker {member}"


Bin = NewType("Bin", int)
"""A group of keys that moves as one: 0 .. 2**bits - 1."""

ExecutionId = NewType("ExecutionId", int)
"""The n-th life of a flow; what an older one does must never become visible (I8)."""


class CheckpointId(NamedTuple):
    """Names a checkpoint for ever: the n-th, taken in a life."""

    execution: ExecutionId
    number: int


@dataclass(frozen=True, slots=True, order=True)
class LayerId:
    """Names a layer for ever: no two layers of any execution share one.

    >>> LayerId(ExecutionId(1), WorkerId(0), 7).key(2)
    b'layer/1/0/7/2'
    """

    execution: ExecutionId
    worker: WorkerId
    sequence: int

    def key(self, chunk: int) -> bytes:
        """The record key of one of its chunks on the state topic."""
        return f"layer/{self.execution}/{self.worker}/{self.sequence}/{chunk}".encode()


def life_of(key: bytes) -> ExecutionId | None:
    """Who has written a record of the state or the in-flight topic, by its key; None of a foreign
    one.

    >>> life_of(LayerId(ExecutionId(3), WorkerId(0), 7).key(2)), life_of(b"foreign")
    (3, None)
    """
    _, _, rest = key.partition(b"/")
    life, _, _ = rest.partition(b"/")
    return ExecutionId(int(life)) if life.isdigit() else None
