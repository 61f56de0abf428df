"""The oracles of patterns can fail: each of these bugs is caught in few runs.

Compiled loops call each other directly, so bugs are planted in the code around them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from meander.dataflow.api.plan import Plan
from meander.dataflow.flow_control.ready_rows import ReadyRows, Weigh
from meander.dataflow.generic_join import kernels
from meander.dataflow.generic_join.lookup import Lookup
from meander.dataflow.generic_join.prefixes import Prefixes
from meander.dataflow.generic_join.steps import Count, Found, KeyLookup, Relations
from meander.dataflow.graph.graph import Location
from meander.dataflow.operators.buffer.rows import Rows
from meander.dataflow.operators.collection.logic import ArrangeLogic
from meander.dataflow.progress.capability import CapabilityError
from meander.dataflow.records.batch import Batch
from meander.dataflow.records.loop_times import iterations_of
from meander.state.collections.columns import Int64s
from meander.state.collections.cursor import Cursor
from meander.state.times.antichain import EMPTY_ANTICHAIN, Antichain
from meander.state.times.time import MIN_TIME
from tests.support.collections.graph_flows import GRAPH_FLOWS, random_case, run
from tests.support.collections.pattern_flows import (
    PATTERN_FLOWS,
    check_times,
    random_changes,
    random_control,
    run_pattern,
)
from tests.support.collections.proposals_inside import ProposalsInside
from tests.support.property.planted import expect_caught, runs

RUNS = 40
WORKERS = 3
_count, _init = Count.__call__, ReadyRows.__init__
_remove: Any = ArrangeLogic.remove
_lookups = Relations.lookups
_support: Any = kernels.support_dynamic


def _at_its_time(relations: Relations, batch: Batch, prefixes: Prefixes) -> Iterator[KeyLookup]:
    seen = replace(relations, before=np.zeros_like(relations.before))
    yield from _lookups(seen, batch, prefixes)


def _at_once(lookup: Lookup) -> Antichain:
    return EMPTY_ANTICHAIN


def _without_capability(lookup: Any) -> bool:
    received = False
    for message in lookup._input.drain():
        received = True
        lookup._capabilities.retain(lookup._output.mint(message))
        lookup._waiting.add(Rows.of(message.payload, 0, iterations_of(message.time)))
        lookup._capabilities.downgrade()
    return received


def _additions(*columns: Any) -> None:
    *places, changes, support = columns
    _support(*places, np.maximum(changes, 0), support)


def _not_reset(step: Count, batch: Batch, cursors: Sequence[Cursor]) -> Found:
    return _count(replace(step, width=1), batch, cursors)


def _by_prefixes(
    ready: ReadyRows, by_time: bool, note: Callable[[Int64s], None], weigh: Weigh
) -> None:
    _init(ready, by_time, note)


def _without_lookups(plan: Plan, operator: str) -> list[Location]:
    readers = {one.operator for one in plan.arrangements if one.kept_by == operator}
    return [plan.ports[name].outputs[0] for name in readers]


def _twice(logic: Any, first: int, last: int, at: int) -> None:
    if at != MIN_TIME:
        _remove(logic, first, last, at)


def _left_out(lookup: Lookup) -> Any:
    return ()


def _of_graphs(name: str, seed: int) -> None:
    """Compare the changes of a flow that is disturbed with those of one that is not."""
    graph, case = GRAPH_FLOWS[name], random_case(seed, 7, 40)
    assert run(graph, *case).changes == run(graph, case.history, 1, seed).changes


def _of_patterns(name: str, seed: int, controlled: bool = True) -> None:
    """Compare the matches at the last time, and check the bound."""
    flow, rng = PATTERN_FLOWS[name], random.Random(f"planted {seed}")
    changes = random_changes(rng, flow, 60, 50, skewed=seed % 2 == 1)
    control, inside = random_control(rng) if controlled else None, ProposalsInside()
    try:
        with inside.counting():
            found = run_pattern(flow, changes, control, WORKERS, seed)
    except (CapabilityError, IndexError) as error:
        raise AssertionError(f"an operator fails: {error}") from error
    check_times(flow, changes, found, [changes[-1][0]])
    if control is not None:
        inside.check(control, WORKERS)


Planted = tuple[Any, str, Any]
"""An owner, the name of what it has, and the bug in its place."""
PLANTED: dict[str, tuple[Planted, Callable[[int], None], int]] = {
    "a query sees all changes of its own time": (
        (Relations, "lookups", _at_its_time), partial(_of_patterns, "3-cliques"), 2,
    ),
    "a lookup does not wait for its arrangements": (
        (Lookup, "_complete", _at_once), partial(_of_patterns, "cycles", controlled=False), 6,
    ),
    "prefixes that wait have no capability": (
        (Lookup, "_receive", _without_capability), partial(_of_patterns, "3-cliques"), 0,
    ),
    "an intersection forgets removed edges": (
        (kernels, "support_dynamic", _additions), partial(_of_patterns, "diamonds of any nodes"), 0,
    ),
    "an extension keeps the choice of the one before": (
        (Count, "__call__", _not_reset), partial(_of_patterns, "4-cliques"), 2,
    ),
    "a batch counts prefixes in place of their proposals": (
        (ReadyRows, "__init__", _by_prefixes), partial(_of_patterns, "diamonds of any nodes"), 0,
    ),
    "arrangements join times that lookups tell apart": (
        (Plan, "reader_outputs", _without_lookups), partial(_of_patterns, "3-cliques"), 0,
    ),
    "a bin that comes back is there twice for lookups that lag": (
        (ArrangeLogic, "remove", _twice), partial(_of_graphs, "diamonds"), 20,
    ),
    "prefixes that wait are left out of checkpoints": (
        (Lookup, "in_flight", _left_out), partial(_of_graphs, "two-way"), 15,
    ),
}  # fmt: skip
"""Each with a run that shows it, and the seed of that run, as it is now."""


@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_is_caught(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    planted, recover, shown = PLANTED[bug]
    expect_caught(monkeypatch, planted, recover, runs(shown, RUNS))
