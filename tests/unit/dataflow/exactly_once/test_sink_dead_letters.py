"""A transaction waits for the dead letters of its sinks, but for those of no later result (I7)."""

from __future__ import annotations

from collections import Counter
from random import Random

from meander.dataflow.exactly_once.commit_history import CommittedResults
from meander.dataflow.exactly_once.ordered_sink import OrderedSink
from meander.dataflow.exactly_once.transaction_loop import TransactionLoop
from meander.dataflow.operators.error_policy import Guard, SinkDeadLetters
from meander.dataflow.simulation.in_memory import ListDeadLetters, ListSink
from meander.dataflow.simulation.simulator import SimClock
from meander.dataflow.simulation.transactions import Ledger, ListTransactions, TransactionalWriter
from meander.state.keys.ids import ExecutionId, WorkerId
from tests.support.sim.operator_bench import Bench, pool, records

ME, EXECUTION = WorkerId(0), ExecutionId(1)
TURNS = 60


class Prompt(Random):
    """A chance by which each transaction is committed at the first check."""

    def random(self) -> float:
        return 0.0


class LateDeadLetters(ListDeadLetters):
    """Dead letters that become durable between two turns."""

    def delivered(self) -> int:
        return self.added - len(self.waiting)


def test_a_transaction_starts_though_each_turn_has_results_that_the_topic_refuses() -> None:
    bench, clock, dead, ledger = Bench(), SimClock(), LateDeadLetters(), Ledger(Prompt())
    ledger.start_execution(EXECUTION)
    transactions, sink_dead = ListTransactions(ledger), SinkDeadLetters(dead)
    topic = ListSink(refuses=lambda value: value == "refused")
    sink = OrderedSink(
        bench.context(pool("total")), bench.inputs[0], bench.output,
        TransactionalWriter(transactions, topic.writer(ME, Random(0))),
        Guard("sink", "dead_letter", sink_dead, Counter()), sink_dead,
        CommittedResults([], 0, {}, replays=False), 0,
    )  # fmt: skip
    loop = TransactionLoop(
        ME, EXECUTION, [sink], sink_dead, [], transactions, clock, 0.001, True, lambda _: None
    )
    for turn in range(TURNS):
        clock.advance(1)
        bench.put(records(["good", "refused"], [turn, turn], ["a", "b"]))
        bench.pass_to(turn + 1)
        sink.schedule()
        if loop.step():
            assert not dead.waiting, "a crash now would lose none of its dead letters"
        dead.waiting.clear()
    assert transactions.begun >= TURNS // 3, "a turn to write, one to wait, one to commit"
    assert topic.values == ["good"] * len(topic.values)
