"""The oracle of exactly once can fail: each of these bugs, planted in the engine, is caught in few
runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from meander.dataflow.checkpoint import restore_plan
from meander.dataflow.control.decisions import PendingDecisions
from meander.dataflow.control.routing import Routing
from meander.dataflow.exactly_once import commit_history
from meander.dataflow.exactly_once.commit_history import NOT_COMMITTED, CommittedResults, History
from meander.dataflow.exactly_once.marker_retention import MarkerRetention
from meander.dataflow.exactly_once.ordered_sink import OrderedSink
from meander.dataflow.exactly_once.replay_check import Replay, Replays
from meander.dataflow.exactly_once.transaction_loop import TransactionLoop
from meander.dataflow.operators.buffer import buffer, spill
from meander.dataflow.operators.error_policy import SinkDeadLetters
from meander.dataflow.simulation.simulator import DurableWorld
from meander.dataflow.simulation.transactions import Ledger, ListTransactions
from meander.state.checkpoint.checkpoint import ReplayFrom
from tests.support.property.budget import LIMIT
from tests.support.property.cases import random_case, with_aborts, with_some_comings_and_goings
from tests.support.property.exactly_once_run import TIMED, ExactlyOnceRun
from tests.support.property.planted import expect_caught, runs

RUNS = 100


def _nothing(*_: object) -> None:
    pass


def _off_by(much: int) -> Callable[..., Any]:
    commit = ListTransactions.commit

    def moved(transactions: Any, mark: Any) -> None:
        times = {sink: time + much for sink, time in mark.times.items()}
        commit(transactions, replace(mark, times=times))

    return moved


_of = History.of


def _of_the_last_life(lives: Any, sink: str, first: int) -> Any:
    known = lives._executions
    lives._executions = dict([*known.items()][-1:])
    found = _of(lives, sink, first)
    lives._executions = known
    return found


def _by_the_greatest(earlier: Any, bins: Any, times: Any) -> Any:
    return np.where(times < earlier.latest_marker, 0, NOT_COMMITTED)


_whose = CommittedResults.committed_by


def _whose_it_was_last(earlier: Any, bins: Any, times: Any) -> Any:
    found, known, before = np.full(len(times), NOT_COMMITTED), earlier._executions, 0
    for one in known:
        earlier._executions = [one]
        whose = _whose(earlier, bins, times)
        found = np.where(whose == NOT_COMMITTED, found, before + whose)
        before += len(one.markers)
    earlier._executions = known
    return found


_add = Replay.add


def _coming_again(change: Callable[[Any], list[int]]) -> Callable[..., Any]:
    def add(replay: Any, whose: Any, batch: Any) -> None:
        rows = np.array(change(range(len(batch))), np.int64)
        _add(replay, whose[rows], batch.take(rows))

    return add


def _altered(replay: Any, whose: Any, batch: Any) -> None:
    _add(replay, whose, batch.with_values([*batch.values[1:], "other"]))


_claims = commit_history._PastExecution.claims


def _in_part(life: Any, sink: str, replay_from: int) -> Any:
    return _claims(life, sink, 0)


def _without_earlier_lives(replays: Any, until: int) -> Any:
    return tuple(ReplayFrom(sink, until) for sink in replays._before)


def _let_go_unnoticed(sink: Any, rows: Any) -> None:
    sink._input.latency.complete_each(rows.arrivals)


def _without_moves(life: Any, space: Any) -> Any:
    return Routing(space, life.start.owners)


_begin = DurableWorld.start_execution


def _read_before_fencing(world: Any, *how: Any) -> None:
    known = [*world.ledger.markers]
    world.ledger.start_execution(world.execution + 1)
    late, world.ledger.markers = world.ledger.markers, known
    _begin(world, *how)
    world.ledger.markers = late


_underway = OrderedSink.in_flight


def _without_uncommitted(sink: Any) -> Any:
    kept, sink._under_way = sink._under_way, type(sink._under_way)()
    found = [*_underway(sink)]
    sink._under_way = kept
    return found


def _without_disk(sink: Any) -> Any:
    kept, sink._stored = sink._stored, buffer.SpillBuffer(_nothing)  # type: ignore[arg-type]
    found = [*_underway(sink)]
    sink._stored = kept
    return found


def _without_its_mark(ledger: Any, mark: Any, show: Any) -> None:
    ledger.open.remove((mark, show))
    show()


def _at_once(trimming: Any, number: int, _: Any) -> None:
    trimming._unneeded[number] = trimming._ask()() or 0


def _before_it_is_durable(decisions: Any) -> None:
    while decisions._unsent:
        decisions._unsent.popleft().send()


def _without_newer(_: object, cut: Any, *_rest: object) -> Any:
    return cut


BUGS: dict[str, tuple[Any, str, Callable[..., Any]]] = {
    "a mark is one too high": (ListTransactions, "commit", _off_by(1)),
    "a mark is too low": (ListTransactions, "commit", _off_by(-(1 << 40))),
    "a mark is not committed with its results": (Ledger, "commit", _without_its_mark),
    "only the latest execution's markers are consulted": (History, "of", _of_the_last_life),
    "the greatest mark counts for all workers": (
        CommittedResults, "committed_by", _by_the_greatest,
    ),
    "bins have their first owners throughout": (
        commit_history._PastExecution, "routing", _without_moves,
    ),
    "an ended execution is obeyed": (Ledger, "expect_current", _nothing),
    "marks are read before others are fenced off": (
        DurableWorld, "start_execution", _read_before_fencing,
    ),
    "rulings are not committed": (TransactionLoop, "add_overrides", _nothing),
    "what is being committed is left out of a cut": (
        OrderedSink, "in_flight", _without_uncommitted,
    ),
    "what lies on disk while it is being committed is left out of a cut": (
        OrderedSink, "in_flight", _without_disk
    ),
    "a transaction ends in the midst of a time": (
        OrderedSink, "complete", property(lambda _: True)  # type: ignore[dict-item]
    ),
    "marks are forgotten while they are needed": (MarkerRetention, "start_checkpoint", _at_once),
    "a decision is sent before it is durable": (PendingDecisions, "send", _before_it_is_durable),
    "an execution forgets added partitions": (
        restore_plan, "_with_newer_partitions", _without_newer,
    ),
    "a result that comes again is another": (Replay, "add", _altered),
    "a result does not come again": (Replay, "add", _coming_again(lambda rows: [*rows][1:])),
    "a result comes again twice": (Replay, "add", _coming_again(lambda rows: [*rows, 0])),
    "repeats count for the latest execution alone": (
        CommittedResults, "committed_by", _whose_it_was_last,
    ),
    "a transaction counts that comes again in part": (
        commit_history._PastExecution, "claims", _in_part,
    ),
    "results of a bin that came leave while those of before have not": (
        OrderedSink, "_blocked_times", lambda _: []
    ),
    "a transaction does not wait for dead letters": (
        SinkDeadLetters, "durable", property(lambda _: True)  # type: ignore[dict-item]
    ),
    "what sinks let go of before a cut comes again": (OrderedSink, "_drop_rows", _let_go_unnoticed),
    "results from before a cut, of earlier executions, come again": (
        Replays, "replay_from", _without_earlier_lives
    ),
}  # fmt: skip


SHOWN = {
    "bins have their first owners throughout": 126, "an ended execution is obeyed": 1,
    "marks are read before others are fenced off": 15, "rulings are not committed": 1,
    "a transaction ends in the midst of a time": 4,
    "what lies on disk while it is being committed is left out of a cut": 5,
    "marks are forgotten while they are needed": 21,
    "an execution forgets added partitions": 65,
    "repeats count for the latest execution alone": 25,
    "results from before a cut, of earlier executions, come again": 26,
    "results of a bin that came leave while those of before have not": 12,
    "a transaction does not wait for dead letters": 27,
    "a transaction counts that comes again in part": 1,
    "what sinks let go of before a cut comes again": 1,
}  # fmt: skip
"""The seeds that show them, as it is now."""


@pytest.mark.timeout(LIMIT)
@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_caught(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (spill, buffer):
        monkeypatch.setattr(module, "SLICE_ROWS", 2)

    def recover(seed: int) -> None:
        case = with_some_comings_and_goings(with_aborts(random_case(seed, TIMED)))
        ExactlyOnceRun(case).recover()

    expect_caught(monkeypatch, BUGS[bug], recover, runs(SHOWN.get(bug, 0), RUNS))
