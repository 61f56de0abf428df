"""Joint decisions as fields of a record on the decisions topic.

Guarantees that a joint decision reads back as it was written, with all its parts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from meander.app.recovery.packed_numbers import pack_numbers, unpack_numbers
from meander.dataflow.control.decisions import Decision, JointDecision, Part, WorkersPlan
from meander.dataflow.control.resources import Resources
from meander.state.keys.ids import WorkerId


def written(
    decision: JointDecision, write: Callable[[Decision], dict[str, object]]
) -> dict[str, object]:
    """Return the fields of a joint decision; `write` gives those of a part."""
    return {
        "type": "joint", "id": decision.id, "offset": decision.offset,
        "parts": [write(one) for one in decision.parts], **_written_plan(decision.plan),
    }  # fmt: skip


def read(
    fields: Mapping[str, Any], at: int, read_part: Callable[[dict[str, Any]], Decision]
) -> JointDecision:
    """Return the joint decision of some fields. Raises ValueError where a part cannot be one."""
    parts = list[Part]()
    for one in map(read_part, fields["parts"]):
        if not isinstance(one, Part):
            raise ValueError(f"no part of a decision is of type {type(one).__name__}")  # noqa: TRY004
        parts.append(one)
    return JointDecision(fields["id"], fields["offset"], _read_plan(fields), tuple(parts), at)


def _written_plan(plan: WorkersPlan) -> dict[str, object]:
    return {
        "members": list(plan.members),
        "owners": pack_numbers(plan.owners),
        "readers": [[*place, worker] for place, worker in plan.readers.items()],
        "resources": [[worker, asdict(its)] for worker, its in plan.resources.items()],
    }


def _read_plan(fields: Mapping[str, Any]) -> WorkersPlan:
    return WorkersPlan(
        tuple(map(WorkerId, fields["members"])),
        tuple(map(WorkerId, unpack_numbers(fields["owners"]))),
        {(source, partition): WorkerId(one) for source, partition, one in fields["readers"]},
        {WorkerId(worker): Resources(**its) for worker, its in fields["resources"]},
    )
