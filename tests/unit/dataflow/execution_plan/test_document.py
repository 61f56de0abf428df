"""The document of a plan, applied to it, changes nothing; a wrong document is no plan."""

from __future__ import annotations

import random
from typing import Any

import pytest
from pydantic import ValidationError

from meander.dataflow.control.logic_change import LogicVersion
from meander.dataflow.control.resources import ANYWHERE, Resources
from meander.dataflow.execution_plan.difference import difference
from meander.dataflow.execution_plan.document import document_of, updated
from meander.dataflow.execution_plan.plan import ExecutionPlan, PlanError
from meander.schemas.execution_plan import PlanDocument
from meander.state.keys.ids import WorkerId
from tests.support.random_plans import another, random_plan

ZERO, ONE, TWO = map(WorkerId, range(3))
PLAN = ExecutionPlan(
    {ZERO: ANYWHERE, ONE: Resources("a")},
    {"alert": LogicVersion.of("Above", {"limit": 3})},
    {"": (ZERO, ZERO, ONE, ONE), "alone": (ONE, ONE)},
    {("in", 0): ZERO, ("in", 2): ONE},
)


def document(**sections: Any) -> PlanDocument:
    return PlanDocument.model_validate(sections)


@pytest.mark.parametrize("seed", range(100))
def test_the_document_of_a_plan_changes_nothing(seed: int) -> None:
    plan = random_plan(random.Random(seed))
    own = document_of(plan)
    assert updated(plan, own) == plan
    assert updated(plan, PlanDocument.model_validate_json(own.model_dump_json())) == plan
    assert updated(plan, PlanDocument.model_validate(own.sections)) == plan
    assert updated(plan, PlanDocument()) == plan


@pytest.mark.parametrize("seed", range(100))
def test_the_document_of_another_plan_leads_there(seed: int) -> None:
    rng = random.Random(seed)
    before = random_plan(rng)
    after = another(rng, before)
    found = updated(before, document_of(after))
    assert (found.workers, found.bins, found.partitions) == (
        after.workers, after.bins, after.partitions,
    )  # fmt: skip
    for operator, version in after.logic.items():
        # A document cannot take a parameter away where the class stays.
        assert found.logic[operator].name == version.name
        assert found.logic[operator].values.items() >= version.values.items()
    difference(before, found)


def test_new_workers_get_a_share_of_what_the_document_does_not_name() -> None:
    found = updated(PLAN, document(workers={"0": {}, "1": {}, "2": {}}, bins={"2": "0-3"}))
    assert found.bins == {"": (TWO,) * 4, "alone": (ONE, ONE)}
    assert [*found.workers.values()] == [ANYWHERE] * 3, "an empty place is anywhere"


def test_cores_and_memory_stand_in_the_document_of_a_worker_that_has_them() -> None:
    large = document(workers={"0": {"cores": 2, "memory": "2G"}, "1": {"memory": "1536m"}})
    found = updated(PLAN, large)
    assert found.workers == {
        ZERO: Resources(cores=2, memory=2 << 30),
        ONE: Resources(memory=3 << 29),
    }
    assert document_of(found).sections["workers"] == {
        "0": {"cores": 2, "memory": "2g"}, "1": {"memory": "1536m"},
    }  # fmt: skip


def test_bins_of_an_operator_that_moves_alone_stand_apart() -> None:
    found = updated(PLAN, document(bins_of={"alone": {"0": "0", "1": "1"}}))
    assert found.bins == {"": PLAN.bins[""], "alone": (ZERO, ONE)}


@pytest.mark.parametrize(
    ("sections", "error"),
    [
        ({"bins": {"0": "0-2"}}, "bin 3: it has no owner; give it to one worker."),
        ({"bins": {}}, "bin 0: it has no owner; give it to one worker."),
        (
            {"bins_of": {"alone": {"1": "1"}}},
            "bin 0 of operator 'alone': it has no owner; give it to one worker.",
        ),
        (
            {"bins": {"0": "0-2", "1": "2-3"}},
            "bin 2: workers 0 and 1 both get it; give it to one of them.",
        ),
        (
            {"bins": {"0": "0-1", "7": "2-3"}},
            (
                "bin 2: its owner, worker 7, is no worker of the plan; name one of 0, 1, or add"
                " that worker."
            ),
        ),
        (
            {"workers": {"0": {}}, "bins": {"0": "0-1", "1": "2-3"}},
            (
                "bin 2: its owner, worker 1, is no worker of the plan; name one of 0, or add that"
                " worker."
            ),
        ),
        (
            {"bins": {"0": "0-4"}},
            "the bins of worker 0: '0-4' names numbers beyond 3; write such as 0-127, 200.",
        ),
        (
            {"bins": {"1": "3-1"}},
            "the bins of worker 1: '3-1' is no range; write such as 0-127, 200.",
        ),
        (
            {"bins": {"1": "3-"}},
            (
                "the bins of worker 1: '3-' is neither a number nor a range such as 0-3; write such"
                " as 0-127, 200."
            ),
        ),
        (
            {"bins_of": {"none": {"0": "0"}}},
            "group 'none': the plan has no such group of bins; name one of '', 'alone'.",
        ),
        ({"workers": {}}, "the plan: it has no worker; name at least one."),
        (
            {"workers": {"0": {}, "1": {"memory": "15m"}}},
            (
                "worker 1: its memory of 15m is too small; give it 16m or more, or leave it out for"
                " the flow's settings."
            ),
        ),
        (
            {"operators": {"none": {"logic": "Above"}}},
            "operator 'none': it has no logic that can change; name one of 'alert'.",
        ),
        (
            {"partitions": {"in": {"0": "0"}}},
            (
                "source 'in': the plan names other partitions than the flow reads (0, 2); give each"
                " of them to one worker."
            ),
        ),
        (
            {"partitions": {"in": {"0": "0-2"}}},
            (
                "source 'in': the plan names other partitions than the flow reads (0, 2); give each"
                " of them to one worker."
            ),
        ),
        (
            {"partitions": {"in": {"0": "0, 2", "1": "2"}}},
            "partition 2 of source 'in': workers 0 and 1 both get it; give it to one of them.",
        ),
        (
            {"partitions": {"in": {"0": "0, 3"}}},
            (
                "the partitions of source 'in' of worker 0: '3' names numbers beyond 2; write such"
                " as 0-127, 200."
            ),
        ),
        (
            {"partitions": {"in": {"5": "0, 2"}}},
            (
                "partition 0 of source 'in': its reader, worker 5, is no worker of the plan; name"
                " one of 0, 1, or add that worker."
            ),
        ),
        (
            {"partitions": {"none": {"0": "0"}}},
            "source 'none': the flow does not read it; name one of 'in'.",
        ),
    ],
)
def test_a_wrong_document_names_the_object_the_cause_and_the_remedy(
    sections: dict[str, Any], error: str
) -> None:
    with pytest.raises(PlanError) as caught:
        updated(PLAN, document(**sections))
    assert str(caught.value) == error
    assert caught.value.subject
    assert caught.value.cause
    assert caught.value.remedy


@pytest.mark.parametrize(
    "sections",
    [
        {"bin": {}},
        {"workers": {"-1": {}}},
        {"workers": {"01": {}}},
        {"workers": {"a": {}}},
        {"workers": {"0": {"rack": "a"}}},
        {"workers": {"0": {"host": ""}}},
        {"workers": {"0": {"cores": 0}}},
        {"workers": {"0": {"cores": "2"}}},
        {"workers": {"0": {"cores": True}}},
        {"workers": {"0": {"memory": "much"}}},
        {"workers": {"0": {"memory": "0g"}}},
        {"workers": {"0": {"memory": 1024}}},
        {"bins": {"0": "a"}},
        {"bins": {"0": [0, 1]}},
        {"workers": {"0": None}},
        {"operators": {"": {"logic": "A"}}},
        {"operators": {"alert": {"class": "A"}}},
        {"workers": {"100000": {}}},
    ],
)
def test_other_texts_are_no_document(sections: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        document(**sections)
