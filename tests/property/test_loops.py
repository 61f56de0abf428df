"""I1 to I4 and I7 in loops: random flows of loops within loops, splits and exchanges equal a
single-threaded reference on 1 to 8 workers, whatever migrations are asked for and however workers,
links and answers are delayed; and no frontier is ahead of what is outstanding."""

from __future__ import annotations

import random
import traceback
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import Any

import pytest

from meander import Flow
from meander.dataflow.api.plan import Plan
from meander.dataflow.graph.path_summary import Summary
from meander.dataflow.operators.buffer.rows import PendingRows
from meander.dataflow.operators.loop import Feedback
from meander.dataflow.operators.ports import OutputPort
from meander.dataflow.progress.capability import Capability
from meander.dataflow.simulation.in_memory import ListSink, ListSource
from meander.schemas.errors import MeanderError, SetupError
from meander.state.store.store import Databases
from tests.support.property import flows
from tests.support.property.budget import FIRST_SEED, LOOPS, SCHEDULES, seeds
from tests.support.property.case_run import DIFFERS, CaseRun, with_stages
from tests.support.property.cases import Case, random_case, shortest, with_some_comings_and_goings
from tests.support.property.flows import stages_of
from tests.support.property.frontier_watch import watch_frontiers
from tests.support.property.planted import plant, runs
from tests.support.property.shrinking import shrunk

FLOOR, WATCHED, PLANTED_RUNS = 8, 4, 25


def case_of(seed: int) -> Case:
    case = replace(random_case(seed, ("loops",)), workers=random.Random(seed).randint(1, 8))
    return with_some_comings_and_goings(case)


def flow_of(case: Case) -> Flow:
    flow = Flow("f", bins=case.bits, max_inflight=case.max_inflight)
    source = flow.source(ListSource(case.partitions, case.options))
    flows.defined(stages_of(case.seed), source, source).sink(ListSink())
    return flow


@pytest.mark.soak
def test_results_and_state_equal_the_reference(
    databases: Databases, record_property: Callable[[str, object], None]
) -> None:
    namespace, tried, loops, results, moved = count(50_000_000), 0, 0, 0, 0

    def fails(case: Case) -> bool:
        try:
            CaseRun(case).check(databases, next(namespace))
        except Exception:
            return True
        return False

    for seed in seeds(LOOPS, FLOOR):
        case = case_of(seed)
        run = CaseRun(case)
        try:
            run.check(databases, next(namespace))
        except Exception:
            pytest.fail(f"{traceback.format_exc()}\n{with_stages(shrunk(case, shortest, fails))}")
        tried += 1
        loops += sum(stage.kind in flows.LOOPS for stage in flows.all_stages(stages_of(case.seed)))
        results += len(run.sink.results)
        moved += run.changes["bin_moved"]
    record_property(f"{SCHEDULES}flows with loops", tried)
    record_property("their loops", loops)
    record_property("their results", results)
    record_property("their moves of bins", moved)


def test_no_frontier_is_ahead_of_what_is_outstanding(
    databases: Databases, capabilities: list[Capability]
) -> None:
    """I1, I7: every capability and message of every round is known to all."""
    namespace = count(60_000_000)
    for seed in range(FIRST_SEED, FIRST_SEED + WATCHED):
        case = with_some_comings_and_goings(random_case(seed, ("loops",)))
        try:
            watch_frontiers(case, next(namespace), databases, capabilities, flow_of)
        except Exception:
            pytest.fail(f"{traceback.format_exc()}\n{with_stages(case)}")


# -- bugs that are caught

_send = OutputPort.send


def _standing(port: Any, capability: Any, time: Any, payload: Any, to: Any = None) -> None:
    """Feedback that does not count the round, though progress does."""
    edges = port._edges
    port._edges = [
        replace(edge, summary=Summary((0,) * len(time))) if any(edge.summary.kept) else edge
        for edge in edges
    ]
    _send(port, capability, time, payload, to)
    port._edges = edges


def _unstripped(port: Any, capability: Any, time: Any, payload: Any, to: Any = None) -> None:
    """Leaving a scope without giving up its coordinate."""
    edges = port._edges
    port._edges = [
        replace(edge, summary=Summary((0,) * len(time)))
        if isinstance(time, tuple) and len(edge.summary.kept) < len(time)
        else edge
        for edge in edges
    ]
    _send(port, capability, time, payload, to)
    port._edges = edges


_passed = PendingRows.pop_passed


def _product_order(waiting: Any, frontier: Any) -> Any:
    """A later time's rounds do not wait for those of an earlier one."""
    batches = waiting._batches
    if any(isinstance(time, int) for time in frontier):
        return _passed(waiting, frontier)
    ready = [rows for _, rows in batches if not frontier.less_equal(rows.least_time)]
    waiting._batches = [(least, r) for least, r in batches if frontier.less_equal(r.least_time)]
    return ready


PLANTED: dict[str, tuple[type, str, Callable[..., Any], str]] = {
    "feedback does not count the round": (OutputPort, "send", _standing, DIFFERS),
    "what leaves keeps its round": (OutputPort, "send", _unstripped, "at a location or time"),
    "records go round for ever": (
        Feedback,
        "_next_iteration",
        lambda self, batch, time: batch,
        DIFFERS,
    ),
    "later times overtake earlier ones in a loop": (
        PendingRows,
        "pop_passed",
        _product_order,
        f"{DIFFERS}|does not come to its end",
    ),
}
"""And what is said of it."""
SHOWN = {"what leaves keeps its round": 1}
"""The seed that shows it, as it is now; the third shows the others."""


@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_is_caught(
    bug: str, databases: Databases, capabilities: list[Capability], monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, method, planted, said = PLANTED[bug]
    plant(monkeypatch, owner, method, planted)
    namespace = count(70_000_000 + 1_000 * list(PLANTED).index(bug))

    def tried() -> None:
        for seed in runs(SHOWN.get(bug, 2), PLANTED_RUNS):
            CaseRun(case_of(seed)).check(databases, next(namespace))
            watch_frontiers(
                random_case(seed, ("loops",)), next(namespace), databases, capabilities, flow_of
            )

    with pytest.raises((AssertionError, MeanderError), match=said):
        tried()


def test_a_feedback_edge_that_counts_no_round_is_refused_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """I7: then no frontier could ever pass the loop."""
    monkeypatch.setattr(Summary, "feedback", lambda depth: Summary.between(depth, depth))
    flow = flow_of(case_of(0))
    with pytest.raises(SetupError, match="it is on a cycle whose times do not grow"):
        _ = Plan(flow).graph.reach
