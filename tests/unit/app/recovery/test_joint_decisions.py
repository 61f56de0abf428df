"""The decision log gives back each joint decision whole, and an execution starts with it (I8)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest

from meander import Flow
from meander.app.recovery import restart
from meander.app.recovery.decision_log import from_bytes, to_bytes
from meander.app.recovery.restart import last_joint_decision, start_execution
from meander.connectors.topics.internal_topics import topic_names
from meander.dataflow.api.plan import Plan
from meander.dataflow.control.decisions import (
    JointDecision,
    LogicDecision,
    Part,
    StartDecision,
    WorkersPlan,
)
from meander.dataflow.control.logic_change import LogicChange, LogicVersion
from meander.dataflow.control.partition_handoff import ReassignPartition
from meander.dataflow.control.reassignment import Moves
from meander.dataflow.control.resources import Resources
from meander.dataflow.exactly_once.commit_history import Written
from meander.dataflow.interfaces import Partition
from meander.dataflow.simulation.in_memory import ListSink, ListSource
from meander.schemas.errors import MeanderError
from meander.state.keys.ids import Bin, ExecutionId, WorkerId

ZERO, ONE, FOUR = map(WorkerId, (0, 1, 4))
FIRST, SECOND = map(ExecutionId, (1, 2))
BINS = 4
LARGE = Resources("a", "3", cores=2, memory=1 << 30)
LOGIC = LogicDecision(
    (LogicChange("p", "s", 7, LogicVersion("A"), LogicVersion.of("B", {"a": [1, None]}), 2, 9),)
)
PARTS: Sequence[Part] = (
    Moves("p/bins", 7, FOUR, (Bin(0), Bin(3))),
    LOGIC,
    ReassignPartition(0, Partition(1), 7, FOUR),
)
WHOLE = JointDecision(
    "p", 9,
    WorkersPlan(
        (ONE, FOUR), (FOUR, ONE, ONE, FOUR), {("source", 0): ONE, ("source", 1): FOUR},
        {ONE: Resources(), FOUR: LARGE},
    ),
    tuple(PARTS), 7,
)  # fmt: skip


@pytest.mark.parametrize(
    "decision",
    [
        WHOLE,
        replace(WHOLE, parts=()),
        *(replace(WHOLE, parts=(part,)) for part in PARTS),
        replace(WHOLE, plan=WorkersPlan((ZERO,), (), {}, {})),
        replace(WHOLE, plan=replace(WHOLE.plan, owners=(FOUR,) * 256 + (ONE,) * 3)),
    ],
)
def test_a_joint_decision_is_read_as_it_was_written(decision: JointDecision) -> None:
    assert from_bytes(to_bytes(SECOND, decision)) == (SECOND, decision)


@pytest.mark.parametrize("missing", ["id", "offset", "parts", "members", "owners", "readers"])
def test_a_record_without_a_field_of_a_joint_decision_is_refused(missing: str) -> None:
    fields = json.loads(to_bytes(SECOND, WHOLE))
    del fields[missing]
    with pytest.raises(MeanderError, match="decision"):
        from_bytes(json.dumps(fields).encode())


def test_a_joint_decision_is_no_part_of_another() -> None:
    fields = json.loads(to_bytes(SECOND, WHOLE))
    fields["parts"].append(json.loads(to_bytes(SECOND, WHOLE)))
    with pytest.raises(MeanderError, match="decision"):
        from_bytes(json.dumps(fields).encode())


class Log:
    """A decision log in memory, into which another driver may write in between."""

    def __init__(self, written: Sequence[Written], between: Sequence[Written] = ()) -> None:
        self.records, self._between = [*written], [*between]

    def write(self, record: bytes, *_: object) -> None:
        if self._between:
            self.records.append(self._between.pop(0))
        self.records.append(from_bytes(record))


def flow_plan() -> Plan:
    flow = Flow("f", bins=2)
    source = ListSource([[(1, {"k": 1})], [(2, {"k": 2})]])
    counts = flow.source(source).key_by(lambda v: v["k"])
    counts.fold("s", lambda: 0, lambda n, _: (n + 1, n)).sink(ListSink())
    return Plan(flow)


def started(log: Log, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What the second execution starts with."""
    monkeypatch.setattr(restart, "read_decisions", lambda *_: iter([*log.records]))
    options = SimpleNamespace(workers=2, kafka={}, heartbeat_timeout=1.0)
    prepared: Any = SimpleNamespace(
        plan=flow_plan(), options=options, names=topic_names("", "f"), topics=(), execution=SECOND,
        joint=last_joint_decision(log.records),
    )  # fmt: skip
    asked = count()
    return start_execution(prepared, None, log, lambda: next(asked) and None)  # type: ignore[arg-type]


MOVED = replace(WHOLE, parts=(PARTS[0], PARTS[2]))
START = StartDecision(0, (ZERO, ZERO, ONE, ONE), 2)
OWNERS = (ONE, ZERO, ZERO, ONE)
"""Those of the joint decision, by the ranks of its members."""


def starts(log: Log) -> list[StartDecision]:
    """The starts that the second execution has written."""
    return [
        one for author, one in log.records if author == SECOND and isinstance(one, StartDecision)
    ]


def test_an_execution_starts_with_the_plan_of_the_last_joint_decision(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = Log([(FIRST, START), (FIRST, MOVED)])
    restored = started(log, monkeypatch)
    assert restored.owners == OWNERS
    assert [one.owners for one in starts(log)] == [OWNERS]
    assert restored.reconfigured == {"p": replace(MOVED, execution=FIRST)}
    assert restored.resources == {ZERO: Resources(), ONE: LARGE}


def test_a_start_is_written_again_where_a_joint_decision_came_between(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = Log([(FIRST, START)], between=[(FIRST, MOVED)])
    restored = started(log, monkeypatch)
    first, second = starts(log)
    assert first.owners != OWNERS
    assert second.owners == restored.owners == OWNERS
    assert restored.reconfigured == {"p": replace(MOVED, execution=FIRST)}


def test_a_start_is_written_once_where_none_came_between(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log([(FIRST, START)])
    restored = started(log, monkeypatch)
    assert len(starts(log)) == 1
    assert (restored.reconfigured, restored.resources) == ({}, {})


def test_a_joint_decision_of_a_superseded_execution_does_not_count() -> None:
    late = replace(MOVED, id="late")
    log: list[Written] = [(FIRST, START), (FIRST, MOVED), (SECOND, START), (FIRST, late)]
    assert last_joint_decision(log) == replace(MOVED, execution=FIRST)
    assert last_joint_decision(log[:1]) is None
