"""I5 where a worker joins while rulings are being committed: its mark may be durable before they
are, so it hears of them before it sees any frontier."""

from __future__ import annotations

import pytest

from meander import Flow
from meander.dataflow.simulation.in_memory import ListSink
from meander.dataflow.simulation.simulator import Join
from meander.dataflow.simulation.transactions import ListTransactions
from meander.testing import TestFlow
from tests.support.sim.manual_flow import ManualSource


class Hanging(ListTransactions):
    """Transactions of which worker 0's take for ever."""

    @property
    def busy(self) -> bool:
        return (self._open is not None and self._open[0].worker == 0) or super().busy


@pytest.mark.parametrize("seed", range(20))
def test_a_joining_worker_receives_the_overrides_that_are_being_committed(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("meander.connectors.testing.simulated_flow.ListTransactions", Hanging)
    source, sink = ManualSource(2), ListSink()
    flow = Flow("f", bins=1, delivery="exactly_once")
    flow.source(source).key_by(lambda value: 0).fold("n", int, lambda n, v: (n + 1, n)).sink(sink)
    with TestFlow(flow, 1, seed) as run:
        source.give(0, (1000, "a"))
        while not run.world.ledger.open:
            run.act()
        ((mark, _),) = run.world.ledger.open
        assert mark.overrides, "partition 1 was idle, and moved past the record"
        run.inject(Join())
        while not (len(run.workers) == 2 and run.workers[1].parts.progress.ready):
            run.act()
        assert {*mark.overrides} <= {*run.workers[1].parts.transactions.uncommitted_overrides}
