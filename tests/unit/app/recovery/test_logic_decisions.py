"""The decision log gives back each change of logic, and an execution starts with those before it
(I8)."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from meander import ChangeableLogic, Flow
from meander.app.recovery import restart
from meander.app.recovery.decision_log import from_bytes, to_bytes
from meander.app.recovery.restart import earlier_changes
from meander.connectors.topics.internal_topics import topic_names
from meander.dataflow.api.plan import Plan
from meander.dataflow.control.decisions import JoinDecision, StartDecision
from meander.dataflow.control.logic_change import LogicChange, LogicVersion
from meander.dataflow.exactly_once.commit_history import Written, logic_changes
from meander.dataflow.simulation.in_memory import ListSink, ListSource
from meander.schemas.errors import MeanderError
from meander.state.keys.ids import ExecutionId, WorkerId

ONE, TWO, THREE = map(ExecutionId, range(1, 4))
START = StartDecision(0, (), 1)
ABOVE = LogicVersion.of("Above", {"limit": 2})
RICH = LogicVersion.of("rules:Rules.Rich", {"words": ["caf\u00e9", {"a": None}], "n": -1 << 70})


def changed(id: str, time: int = 7, operator: str = "above") -> LogicChange:
    return LogicChange(id, operator, time, ABOVE, RICH, 2)


class Above(ChangeableLogic, frozen=True):
    limit: int = 2

    def __call__(self, value: int) -> bool:
        return value > self.limit


@pytest.mark.parametrize("change", [changed("c"), LogicChange("", "", 0, RICH, ABOVE)])
def test_a_change_is_read_as_it_was_written(change: LogicChange) -> None:
    assert from_bytes(to_bytes(TWO, change)) == (TWO, change)


def test_a_record_of_a_change_is_json_that_a_user_can_read() -> None:
    assert json.loads(to_bytes(ONE, changed("c"))) == {
        "execution": 1,
        "at": 7,
        "type": "logic",
        "id": "c",
        "operator": "above",
        "generation": 2,
        "before": {"name": "Above", "parameters": {"limit": 2}},
        "version": {"name": RICH.name, "parameters": RICH.values},
    }


@pytest.mark.parametrize("missing", ["id", "at", "operator", "generation", "before", "version"])
def test_a_record_without_a_part_of_a_change_is_refused(missing: str) -> None:
    fields = json.loads(to_bytes(ONE, changed("c")))
    del fields[missing]
    with pytest.raises(MeanderError, match="decision"):
        from_bytes(json.dumps(fields).encode())


@pytest.mark.parametrize("version", [7, None, {}, {"name": "A"}, {"name": "A", "more": {}}])
def test_a_record_with_no_version_is_refused(version: object) -> None:
    fields = json.loads(to_bytes(ONE, changed("c"))) | {"version": version}
    with pytest.raises(MeanderError, match="decision"):
        from_bytes(json.dumps(fields).encode())


LOG: Sequence[Written] = [
    (ONE, START),
    (ONE, changed("a")),
    (ONE, JoinDecision(WorkerId(1), 8)),
    (TWO, START),
    (ONE, changed("late")),
    (TWO, changed("b", 9)),
    (ONE, START),
    (ONE, changed("later still")),
    (TWO, changed("c", 11)),
    (THREE, START),
    (THREE, changed("d", 12)),
]


def test_changes_hold_that_the_latest_execution_has_decided() -> None:
    """A driver that has lost its flow may write more: none of it counts."""
    assert [change.command for change in logic_changes(LOG)] == ["a", "b", "c", "d"]


@pytest.mark.parametrize(("execution", "ids"), [(ONE, ""), (TWO, "a"), (THREE, "abc")])
def test_an_execution_starts_with_the_changes_before_it(
    execution: ExecutionId, ids: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restart, "read_decisions", lambda *_: iter(LOG))
    flow = Flow("f")
    flow.source(ListSource([[]])).filter(Above(), name="above").sink(ListSink())
    found = earlier_changes(Plan(flow), {}, topic_names("", "f"), execution)
    assert "".join(change.command for change in found) == ids


def test_a_flow_without_changeable_logic_reads_no_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(restart, "read_decisions")
    flow = Flow("f")
    flow.source(ListSource([[]])).sink(ListSink())
    assert earlier_changes(Plan(flow), {}, topic_names("", "f"), ONE) == []
