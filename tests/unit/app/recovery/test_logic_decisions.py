"""The decision log gives back each change of logic, and an execution starts with those before it
(I8)."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from meander.app.recovery import restart
from meander.app.recovery.decision_log import from_bytes, to_bytes
from meander.app.recovery.restart import decided_before
from meander.connectors.topics.internal_topics import topic_names
from meander.dataflow.control.decisions import JoinDecision, LogicDecision, StartDecision
from meander.dataflow.control.logic_change import LogicChange, LogicVersion
from meander.dataflow.exactly_once.commit_history import Written, logic_changes
from meander.schemas.errors import MeanderError
from meander.state.keys.ids import ExecutionId, WorkerId

ONE, TWO, THREE = map(ExecutionId, range(1, 4))
START = StartDecision(0, (), 1)
ABOVE = LogicVersion.of("Above", {"limit": 2})
RICH = LogicVersion.of("rules:Rules.Rich", {"words": ["caf\u00e9", {"a": None}], "n": -1 << 70})


def changed(id: str, time: int = 7, operator: str = "above") -> LogicChange:
    return LogicChange(id, operator, time, ABOVE, RICH, 2)


def decided(*ids: str, time: int = 7) -> LogicDecision:
    return LogicDecision(tuple(changed(id, time) for id in ids))


@pytest.mark.parametrize(
    "changes", [[changed("c")], [LogicChange("", "", 7, RICH, ABOVE), changed("c")]]
)
def test_changes_are_read_as_they_were_written(changes: Sequence[LogicChange]) -> None:
    decision = LogicDecision(tuple(changes))
    assert from_bytes(to_bytes(TWO, decision)) == (TWO, decision)


def test_a_record_of_a_change_is_json_that_a_user_can_read() -> None:
    assert json.loads(to_bytes(ONE, decided("c"))) == {
        "execution": 1,
        "at": 7,
        "type": "logic",
        "changes": [
            {
                "id": "c",
                "offset": 0,
                "operator": "above",
                "generation": 2,
                "before": {"name": "Above", "parameters": {"limit": 2}},
                "version": {"name": RICH.name, "parameters": RICH.values},
            }
        ],
    }


@pytest.mark.parametrize("missing", ["id", "offset", "operator", "generation", "before", "version"])
def test_a_record_without_a_part_of_a_change_is_refused(missing: str) -> None:
    fields = json.loads(to_bytes(ONE, decided("c")))
    del fields["changes"][0][missing]
    with pytest.raises(MeanderError, match="decision"):
        from_bytes(json.dumps(fields).encode())


@pytest.mark.parametrize("version", [7, None, {}, {"name": "A"}, {"name": "A", "more": {}}])
def test_a_record_with_no_version_is_refused(version: object) -> None:
    fields = json.loads(to_bytes(ONE, decided("c")))
    fields["changes"][0]["version"] = version
    with pytest.raises(MeanderError, match="decision"):
        from_bytes(json.dumps(fields).encode())


LOG: Sequence[Written] = [
    (ONE, START),
    (ONE, decided("a")),
    (ONE, JoinDecision(WorkerId(1), 8)),
    (TWO, START),
    (ONE, decided("late")),
    (TWO, decided("b", time=9)),
    (ONE, START),
    (ONE, decided("later still")),
    (TWO, decided("c", time=11)),
    (THREE, START),
    (THREE, decided("d", time=12)),
]


def test_changes_hold_that_the_latest_execution_has_decided() -> None:
    """A driver that has lost its flow may write more: none of it counts."""
    assert [change.command for change in logic_changes(LOG)] == ["a", "b", "c", "d"]


@pytest.mark.parametrize(("execution", "ids"), [(ONE, ""), (TWO, "a"), (THREE, "abc")])
def test_an_execution_starts_with_the_changes_before_it(
    execution: ExecutionId, ids: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restart, "read_decisions", lambda *_: iter(LOG))
    found = logic_changes(decided_before({}, topic_names("", "f"), execution))
    assert "".join(change.command for change in found) == ids


def test_an_execution_starts_with_the_changes_of_its_own_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A later change reaches its workers by the coordinator."""
    log = [*LOG, (THREE, decided("", time=13)), (THREE, decided("e", time=14))]
    monkeypatch.setattr(restart, "read_decisions", lambda *_: iter(log))
    found = logic_changes(decided_before({}, topic_names("", "f"), THREE))
    assert [change.command for change in found] == ["a", "b", "c", ""]
