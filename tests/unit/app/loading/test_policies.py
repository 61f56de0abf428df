"""The policies of a run are those of its module, then those that the command line names."""

from __future__ import annotations

from importlib.metadata import EntryPoint

import pytest

from meander import DriftTrigger, DS2Autoscaler, Flow, Metrics, PacedMigration, Policy, SkewBalancer
from meander.app.loading import policies
from meander.app.loading.policies import parse_policy, policies_of
from meander.dataflow.execution_plan.plan import ExecutionPlan
from meander.schemas.errors import SetupError


class Patient(Policy):
    """A policy of another package."""

    def __init__(self, seconds: float) -> None:
        if seconds < 0:
            raise ValueError("seconds are not negative")
        self.seconds = seconds

    def decide(self, metrics: Metrics, plan: ExecutionPlan) -> ExecutionPlan | None:
        return None


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [
        EntryPoint("patient", f"{__name__}:Patient", policies.GROUP),
        EntryPoint("gone", "nowhere:Gone", policies.GROUP),
        EntryPoint("other", "builtins:dict", policies.GROUP),
    ]
    monkeypatch.setattr(policies, "entry_points", lambda group: points)


def test_those_of_the_flow_come_first() -> None:
    flow = Flow("counts", policies=[SkewBalancer()])
    names = [one.name for one in policies_of(flow, ["ds2", "paced:inner=skew"])]
    assert names == ["SkewBalancer", "DS2Autoscaler", "PacedMigration(SkewBalancer)"]


def test_options_are_numbers_switches_and_texts() -> None:
    assert parse_policy("ds2: max_workers=3, utilization=0.5") == DS2Autoscaler(
        max_workers=3, utilization=0.5
    )
    assert parse_policy("skew:isolate=false") == SkewBalancer(isolate=False)
    assert parse_policy("drift:operator=alert,parameter=limit,target=1e-2") == DriftTrigger(
        "alert", "limit", 0.01
    )
    assert parse_policy("paced:inner=ds2,latency=0.2") == PacedMigration(DS2Autoscaler(), 0.2)


def test_an_entry_point_adds_a_policy(installed: None) -> None:
    found = parse_policy("patient:seconds=4")
    assert isinstance(found, Patient)
    assert found.seconds == 4


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ds3", "policy 'ds3': it is unknown; name one of drift, ds2, gone, other, paced, patient"),
        ("ds2:max_workers", "'max_workers' is no option; write key=value for min_workers, max_"),
        ("ds2:most=3", "it cannot be made: TypeError"),
        ("ds2:max_workers=many", "its max_workers is 'many'; give a whole number"),
        ("ds2:max_workers=0", "policy DS2Autoscaler: its max_workers is 0"),
        ("paced", "it cannot be made: TypeError"),
        ("paced:inner=ds3", "policy 'ds3': it is unknown"),
        ("patient:seconds=-1", "it cannot be made: ValueError: seconds are not negative"),
        ("gone", "its entry point cannot be loaded: ModuleNotFoundError"),
        ("other", "its entry point gives a dict; let the entry point name a subclass of"),
    ],
)
def test_a_wrong_text_is_an_error_with_the_remedy(installed: None, text: str, message: str) -> None:
    with pytest.raises(SetupError) as error:
        parse_policy(text)
    assert message in str(error.value)


def test_a_flow_takes_policies_alone() -> None:
    with pytest.raises(SetupError, match="its policy .*SkewBalancer.* is no Policy"):
        Flow("counts", policies=[SkewBalancer])  # type: ignore[list-item]
