"""A version of a logic takes effect at one logical time on all workers, or on none."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

import pytest

from meander import ChangeableLogic, Flow, KafkaSink, KafkaSource
from meander.connectors.testing.answers import Answer
from meander.dataflow.control.logic_change import LogicVersion
from meander.dataflow.coordinator.logic_changes import MAX_PARAMETERS
from meander.dataflow.exactly_once.commit_history import logic_changes
from meander.dataflow.logic.changeable import load
from meander.dataflow.logic.worker_logics import MAX_ERROR
from meander.dataflow.simulation.faults import Pause
from meander.dataflow.simulation.simulator import DurableWorld
from meander.schemas.errors import SetupError
from meander.testing import TestFlow
from tests.support.sim.tagged_flow import (
    HOME,
    KEYS,
    Command,
    change,
    combined,
    events,
    read,
    reason,
    tagged_flow,
    tags,
    versions,
)

# -- the commands that are rejected


@pytest.mark.parametrize("operator", ["nowhere", "in", "above exchange", "key_by"])
def test_an_operator_without_a_changeable_logic_is_rejected(operator: str) -> None:
    with TestFlow(tagged_flow()) as run:
        run.control(change("c", operator))
        run.run()
    assert reason(run, "c") == (
        f"operator {operator!r} has no logic that can change: name one of 'above', 'tagged'"
    )


def test_a_flow_without_changeable_logic_rejects_each_change() -> None:
    flow = Flow("f", bins=2)
    flow.source(KafkaSource("in")).map(lambda n: n, name="same").sink(KafkaSink("out"))
    with TestFlow(flow) as run:
        run.control(change("c", "same"))
        run.run()
    assert reason(run, "c").endswith("has no logic that can change: derive it from ChangeableLogic")


def test_a_closed_time_is_rejected_with_the_earliest_that_is_possible() -> None:
    with TestFlow(tagged_flow()) as run:
        read(run, 2)
        run.control(change("c", second=1))
        run.run()
    assert reason(run, "c").startswith("time 1000 ms is closed: the earliest possible is 2001 ms")
    assert events(run, "c") == ["rejected"]


def test_a_time_that_closes_while_workers_prepare_is_rejected() -> None:
    """A record of that time may have met the old version."""
    with TestFlow(tagged_flow()) as run:
        read(run, 1)
        run.inject(Pause(worker=1, steps=3_000))
        run.control(change("c", second=2, tag="second"))
        read(run, 3, range(0, KEYS, 2))
        run.run()
    assert events(run, "c") == ["logic_accepted", "rejected"]
    assert reason(run, "c") == (
        "time 2000 ms was closed before all workers had loaded the logic: name a later time, or"
        " leave it out for as soon as possible"
    )
    assert {tag for some in tags(run) for tag in some} == {"first"}


@pytest.mark.parametrize("second", [4, 5])
def test_a_change_does_not_come_before_the_last_one_of_its_operator(second: int) -> None:
    """States are upgraded in the order of the decisions, so these have ascending times."""
    with TestFlow(tagged_flow()) as run:
        read(run, 1)
        run.control(change("c1", second=5, tag="second"))
        run.run_until_idle()
        run.control(change("c2", second=second, tag="third"))
        run.control(change("other", "above", second=second, limit=-2))
        run.control(change("c3", second=6, tag="fourth"))
        run.run_until_idle()
        for second in range(4, 8):
            read(run, second)
        run.run()
    assert reason(run, "c2") == (
        "the logic of operator 'tagged' changes at 5000 ms by command 'c1': name a later time"
    )
    assert events(run, "other") == ["logic_accepted", "logic_changed"]
    assert tags(run) == [["first"], ["first"], ["second"], ["fourth"], ["fourth"]]


def test_a_change_does_not_come_before_one_that_is_prepared() -> None:
    with TestFlow(tagged_flow()) as run:
        read(run, 1)
        run.control(change("c1", second=5, tag="second"))
        run.control(change("c2", second=5, tag="third"))
        run.run_until_idle()
        run.run()
    assert events(run, "c2") == ["logic_accepted", "rejected"]
    assert "changes at 5000 ms by command 'c1'" in reason(run, "c2")
    assert versions(run) == ['Tagged(step_size=1, tag="second")']


def test_a_change_after_the_end_of_the_sources_is_rejected() -> None:
    with TestFlow(tagged_flow()) as run:
        read(run, 1)
        run.run()
        run.control(change("c"))
    assert reason(run, "c") == "the flow's sources have ended: send commands before that"


def test_a_repeated_id_is_rejected() -> None:
    with TestFlow(tagged_flow()) as run:
        read(run, 1)
        run.control(change("c", tag="second"))
        run.run_until_idle()
        for repeated in (change("c", tag="third"), {"type": "rescale", "id": "c", "workers": 3}):
            run.control(repeated)
        run.run()
    said = events(run, "c")
    assert sorted(map(str, said)) == ["logic_accepted", "logic_changed", "rejected", "rejected"]
    assert versions(run) == ['Tagged(step_size=1, tag="second")']


UNWRITABLE: dict[str, tuple[str, str]] = {
    "a number beyond all floats": ('{"step_size": 1e999}', ": give finite numbers"),
    "long texts": (
        json.dumps({"tag": "\u00e9" * (MAX_PARAMETERS // 6)}),
        "and may take 65,536: have the class read the rest from a file",
    ),
}


@pytest.mark.parametrize("name", UNWRITABLE)
def test_parameters_that_no_record_holds_are_rejected(name: str) -> None:
    parameters, remedy = UNWRITABLE[name]
    operators = f'{{"tagged": {{"parameters": {parameters}}}}}'
    command = f'{{"meander":"command","type":"change_logic","id":"c","operators":{operators}}}'
    with TestFlow(tagged_flow()) as run:
        run.control(command.encode())
        read(run, 1)
        run.run()
    assert events(run, "c") == ["rejected"]
    assert reason(run, "c").endswith(remedy)
    assert tags(run) == [["first"]]


def test_parameters_that_grow_too_long_by_an_earlier_command_are_rejected() -> None:
    half = "x" * (MAX_PARAMETERS * 2 // 3)
    with TestFlow(tagged_flow()) as run:
        run.control(combined("c1", tagged={"parameters": {"tag": half}}))
        run.control(combined("c2", tagged={"parameters": {"more": half}}))
        read(run, 1)
        run.run()
    assert events(run, "c1") == ["logic_accepted", "logic_changed"]
    assert events(run, "c2") == ["logic_accepted", "rejected"]
    assert "characters as JSON, and may take 65,536" in reason(run, "c2")


# -- one version on all workers, or none


UNLOADABLE: dict[str, tuple[Command, str]] = {
    "no such class": ({"logic": "Missing"}, "its logic 'Missing' cannot be imported: "),
    "a function": ({"logic": "os:system"}, "its logic 'os:system' is not a subclass of"),
    "a wrong parameter": ({"parameters": {"tag": 1}}, "'Tagged' does not take the parameters"),
    "an unknown parameter": ({"parameters": {"most": 1}}, "contains unknown field `most`"),
    "no step": ({"logic": "Above"}, "its logic Above has no init; give the class a method init"),
}


@pytest.mark.parametrize("name", UNLOADABLE)
def test_a_version_that_does_not_load_changes_nothing(name: str) -> None:
    """Another operator in the same command keeps its version too."""
    new, cause = UNLOADABLE[name]
    with TestFlow(tagged_flow()) as run:
        read(run, 1)
        run.control(combined("c", tagged=new, above={"parameters": {"limit": 99}}))
        run.run_until_idle()
        read(run, 2)
        run.run()
    assert events(run, "c") == ["logic_accepted", "rejected"]
    assert cause in reason(run, "c")
    assert tags(run) == [["first"], ["first"]]


@pytest.mark.parametrize("workers", [2, 3])
@pytest.mark.parametrize("broken", [0, 1])
def test_one_worker_that_cannot_load_a_version_keeps_the_old_one_in_force(
    workers: int, broken: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(operator: str, version: LogicVersion) -> ChangeableLogic:
        if "second" in version.parameters:
            raise SetupError(f"operator {operator!r}", "its file is missing" + "!" * 9_999)
        return load(version, HOME, operator)

    with TestFlow(tagged_flow(), workers) as run:
        read(run, 1)
        monkeypatch.setattr(run.workers[broken].parts.operators.logics, "_load", fail)
        run.control(change("c1", tag="second"))
        run.run_until_idle()
        read(run, 2)
        run.control(change("c2", tag="third"))
        run.run_until_idle()
        read(run, 3)
        run.run()
    assert reason(run, "c1").startswith(f"worker {broken}: operator 'tagged': its file is missing!")
    assert len(reason(run, "c1")) < MAX_ERROR + 20
    assert tags(run) == [["first"], ["first"], ["third"]]


def test_no_version_takes_effect_before_all_workers_have_loaded_it() -> None:
    with TestFlow(tagged_flow(), workers=3) as run:
        read(run, 1)
        run.inject(Pause(worker=2, steps=2_000))
        run.control(change("c", tag="second"))
        for _ in range(1_500):
            run.act()
        assert events(run, "c") == ["logic_accepted"]
        run.run_until_idle()
        read(run, 2)
        run.run()
    assert events(run, "c") == ["logic_accepted", "logic_changed"]
    assert tags(run) == [["first"], ["second"]]


# -- what a command says, and what follows from it


def test_parameters_keep_their_values_where_the_class_stays() -> None:
    """Another class has its own defaults."""
    steps: Sequence[tuple[Command, str]] = [
        ({"parameters": {"tag": "b"}}, 'Tagged(step_size=1, tag="b")'),
        ({"parameters": {"step_size": 3}}, 'Tagged(step_size=3, tag="b")'),
        ({"logic": "Tagged", "parameters": {"tag": "c"}}, 'Tagged(step_size=3, tag="c")'),
        ({"logic": f"{HOME}:Tagged"}, 'Tagged(step_size=1, tag="first")'),
        ({"logic": "Tagged", "parameters": {"tag": "d"}}, 'Tagged(step_size=1, tag="d")'),
        ({}, 'Tagged(step_size=1, tag="d")'),
    ]
    with TestFlow(tagged_flow()) as run:
        for n, (new, version) in enumerate(steps):
            run.control(combined(f"c{n}", tagged=new))
            run.run_until_idle()
            read(run, n + 1)
            assert versions(run)[-1:] == [version]
        run.run()
    assert tags(run) == [["b"], ["b"], ["c"], ["first"], ["d"], ["d"]]


def test_two_commands_at_once_are_prepared_one_after_another() -> None:
    """The second one follows from what the first one decides."""
    with TestFlow(tagged_flow()) as run:
        read(run, 1)
        run.control(change("c1", tag="second"))
        run.control(change("c2", step_size=5))
        run.run_until_idle()
        read(run, 2)
        run.run()
    changed = [event for event in run.events if event["type"] == "logic_changed"]
    assert [event["id"] for event in changed] == ["c1", "c2"]
    assert int(str(changed[0]["at"])) < int(str(changed[1]["at"]))
    assert versions(run)[1] == 'Tagged(step_size=5, tag="second")'


def test_a_command_that_is_rejected_holds_up_no_other() -> None:
    with TestFlow(tagged_flow()) as run:
        read(run, 1)
        run.control(change("c1", logic="Missing"))
        run.control(change("c2", tag="second"))
        run.run_until_idle()
        read(run, 2)
        run.run()
    assert (events(run, "c1")[-1], events(run, "c2")[-1]) == ("rejected", "logic_changed")
    assert tags(run) == [["first"], ["second"]]


def test_a_change_of_two_operators_has_one_time() -> None:
    with TestFlow(tagged_flow()) as run:
        new = {"tagged": {"logic": "Listed"}, "above": {"parameters": {"limit": 3}}}
        run.control(combined("c", 2_000, **new))
        for second in (1, 2):
            read(run, second)
        run.run()
    values: Any = run.values("out")
    assert [one[1] for one in values] == ["first"] * KEYS + ["listed"] * (KEYS - 4)
    (changed,) = (event for event in run.events if event["type"] == "logic_changed")
    assert changed["time"] == 2_000


def test_a_change_of_a_far_time_holds_up_no_other_operator() -> None:
    with TestFlow(tagged_flow()) as run:
        read(run, 1)
        run.control(change("far", second=4_000_000_000))
        run.control(change("soon", "above", limit=99))
        run.run_until_idle()
        read(run, 2)
        run.run()
    assert tags(run) == [["first"]]
    assert events(run, "far") == events(run, "soon") == ["logic_accepted", "logic_changed"]


def test_the_answer_to_a_change_is_its_last_event() -> None:
    """A later command of the same id changes no answer, and an accepted one may be rejected."""
    with TestFlow(tagged_flow()) as run:
        answers = list[object]()
        for id, logic in (("c1", "Listed"), ("c2", "Missing")):
            run.control(change(id, logic=logic))
            answers.append(run.answer(id))
            run.run_until_idle()
        run.control(change("c1", logic="Longer"))
        run.run()
    assert answers == [Answer("accepted"), Answer("accepted")]
    assert run.answer("c1") == Answer("changed")
    assert run.answer("c2") == Answer("rejected", reason(run, "c2"))
    assert run.answer("c3") is None


# -- the next execution


@pytest.mark.parametrize("second", [None, 2])
def test_a_command_that_comes_again_is_decided_once(second: int | None) -> None:
    """Its time may be closed by then."""
    world = DurableWorld.empty(random.Random(1))
    for execution in range(3):
        with TestFlow(tagged_flow(), seed=execution, world=world) as run:
            if execution == 2:
                read(run, 3)
            run.control(change("c", second=second, logic="Listed"))
            run.run_until_idle()
            read(run, 4)
            run.run()
        assert events(run, "c")[-2:] == ["logic_accepted", "logic_changed"]
        assert len([*logic_changes(world.decisions)]) == 1


def test_another_command_with_the_id_of_an_earlier_execution_is_rejected() -> None:
    world = DurableWorld.empty(random.Random(1))
    for ids in ("c", "bc"):
        with TestFlow(tagged_flow(), world=world) as run:
            for id in ids:
                run.control(change(id, tag=ids))
            run.run()
    assert reason(run, "c") == "id 'c' was used before: give each command an id of its own"
