"""The oracle of outboxes can fail: each of these bugs, planted in the engine, is caught in few
runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from meander.dataflow.checkpoint import restore_plan
from meander.dataflow.checkpoint.checkpoint_coordinator import CheckpointCoordinator
from meander.dataflow.exactly_once.commit_history import History
from meander.dataflow.exactly_once.outbox_sink import OutboxSink
from meander.dataflow.operators.buffer import buffer, spill
from meander.dataflow.simulation.transactions import Ledger, ListTransactions
from tests.support.property.outbox_run import OutboxRun, case_of
from tests.support.property.planted import expect_caught, runs

RUNS = 60


def _nothing(*_: object) -> None:
    pass


_take = OutboxSink._receive


def _let_go_at_once(outbox: Any, port: Any) -> bool:
    took = _take(outbox, port)
    if outbox._uncommitted:
        outbox._writer.release(outbox._uncommitted[-1].ticket)
    return took


_freeze = OutboxSink.freeze


def _let_go_by_a_freeze(outbox: Any, checkpoint: int) -> None:
    _freeze(outbox, checkpoint)
    outbox.complete(checkpoint, 0, {})


_complete = OutboxSink.complete


def _let_go_of_all(outbox: Any, checkpoint: int, *others: Any) -> bool:
    if outbox._uncommitted:
        outbox._cut = outbox._cut._replace(ticket=outbox._uncommitted[-1].ticket)
    return _complete(outbox, checkpoint, *others)


def _all_that_lay_there(_: object, cut: Any, __: object) -> Any:
    return cut


def _whoever_has_sent(history: Any, author: Any) -> bool:
    life = history._executions.get(author.execution)
    return life is not None and any(one.checkpoint == author.checkpoint for one in life.sent)


_commit = ListTransactions.commit


def _unsaid(transactions: Any, mark: Any) -> None:
    _commit(transactions, replace(mark, sent=0))


_finish = CheckpointCoordinator._finish


def _though_not_all_is_out(checkpoints: Any, taking: Any) -> None:
    taking.unsent.clear()
    _finish(checkpoints, taking)


LAST = "what lay there comes behind the rest"


def _results_first(outbox: Any) -> bool:
    took = outbox._receive(outbox._results) or outbox._receive(outbox._before)
    return bool(outbox._drop_committed() or took)


BUGS: dict[str, tuple[Any, str, Callable[..., Any]]] = {
    "results do not wait": (OutboxSink, "_receive", _let_go_at_once),
    "results leave before their checkpoint exists": (OutboxSink, "freeze", _let_go_by_a_freeze),
    "results leave that their checkpoint has not": (OutboxSink, "complete", _let_go_of_all),
    "an outbox is left out of a cut": (OutboxSink, "in_flight", lambda _: ()),
    "what is out is put back": (restore_plan, "without_sent_results", _all_that_lay_there),
    "who has sent is not asked": (History, "sent", _whoever_has_sent),
    "a mark does not say what has left with it": (ListTransactions, "commit", _unsaid),
    "a checkpoint begins while another leaves": (
        CheckpointCoordinator, "_finish", _though_not_all_is_out,
    ),
    LAST: (OutboxSink, "schedule", _results_first),
    "what is yet to come first counts as sent": (OutboxSink, "_receive_all", _nothing),
    "an ended execution is obeyed": (Ledger, "expect_current", _nothing),
    "results of a bin that came leave beside those of before": (
        OutboxSink, "_hold_back", lambda outbox, batch, rounds: batch
    ),
}  # fmt: skip
SHOWN = {
    "results do not wait": 1,
    "results leave that their checkpoint has not": 2,
    LAST: 30,
    "what is yet to come first counts as sent": 47,
    "an ended execution is obeyed": 2,
    "results of a bin that came leave beside those of before": 8,
    "who has sent is not asked": 4,
}
"""The seeds that show them, as it is now."""


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_caught(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (spill, buffer):
        monkeypatch.setattr(module, "SLICE_ROWS", 2)

    def recover(seed: int) -> None:
        case = case_of(seed)
        # Order is looked at where keys stay with their workers.
        OutboxRun(replace(case, commands=(), staff=()) if bug == LAST else case).recover()

    expect_caught(monkeypatch, BUGS[bug], recover, runs(SHOWN.get(bug, 0), RUNS))
