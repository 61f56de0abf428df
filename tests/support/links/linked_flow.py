"""A flow whose members are the engine's own, on the real links: CURVE over TCP, in one process."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, Self

from meander import Flow
from meander.connectors.links.links import CurveKeys, CurveLinks, Peer
from meander.dataflow.control.decisions import Decision
from meander.dataflow.coordinator.coordinator import Coordinator
from meander.dataflow.interfaces import Links
from meander.dataflow.runtime.worker import Worker, members_of
from meander.dataflow.simulation.in_memory import ListSink, ListSource
from meander.dataflow.simulation.simulator import SimClock, SimTopic
from meander.state.keys.ids import COORDINATOR, WorkerId
from meander.testing import TestFlow
from tests.support.links.relay import Loss, relay

DEADLINE = 60.0


class LinkedFlow(TestFlow):
    """A flow that runs turn by turn, with all that it sends really under way.

    `delay` seconds lie on each link, each way, or a network that loses.
    """

    def __init__(
        self, flow: Flow, workers: int = 2, delay: float = 0.0, loss: Loss | None = None
    ) -> None:
        self.opened = ExitStack()
        self.links = {me: CurveLinks(me, CurveKeys.generate()) for me in members_of(workers)}
        peers = {
            me: Peer(me, self._through(links.address, delay, loss), links.public)
            for me, links in self.links.items()
        }
        for me, links in self.links.items():
            links.admit(peer for peer in peers.values() if peer.worker != me)
        for me, links in self.links.items():
            links.connect(peer for peer in peers.values() if peer.worker != me)
        super().__init__(flow, workers)
        links, clock = self.links[COORDINATOR], self.sim.clock
        checkpoints = self.world.checkpoint_coordinator(
            self._plan, links, clock, durable=lambda: True
        )
        self.coordinator = Coordinator(
            self._plan, self.world.start, links, clock, _journalled, checkpoints
        )

    def __exit__(self, *_: object) -> None:
        super().__exit__(None, None, None)
        for links in self.links.values():
            links.detach()
        for links in self.links.values():
            links.close(linger=0)
        self.opened.close()

    def __enter__(self) -> Self:
        return self

    def turn(self, *, without: WorkerId | None = None) -> bool:
        """Everybody's turn, perhaps but one worker's; whether anything was done."""
        worked = False
        for worker in self.workers:
            if worker.me != without:
                worked |= worker.step()
                for report in worker.reports():
                    self.coordinator.report(worker.me, report)
        worked |= self.coordinator.step()
        self.sim.clock.advance(0.0005)
        if not worked:
            self.links[COORDINATOR].wait(0.002)
        return worked

    def until(self, holds: Callable[[], bool], *, without: WorkerId | None = None) -> None:
        deadline = time.monotonic() + DEADLINE
        while not holds():
            assert time.monotonic() < deadline, "it does not come to hold"
            self.turn(without=without)

    @property
    def done(self) -> bool:
        return self.coordinator.done and all(worker.done for worker in self.workers)

    def _through(self, address: str, delay: float, loss: Loss | None) -> str:
        if not delay and loss is None:
            return address
        return self.opened.enter_context(relay(address, delay, loss)).address

    def _build(
        self, me: WorkerId, links: Links, clock: SimClock, topic: SimTopic, joins: bool
    ) -> Worker:
        return super()._build(me, self.links[me], clock, topic, joins)  # type: ignore[arg-type]


def _journalled(_: Decision) -> Callable[[], bool]:
    return lambda: True


def counting_flow(source: ListSource, sink: ListSink, **bounds: Any) -> Flow:
    """Return a flow that counts each value."""
    flow = Flow("f", bins=3, **bounds)
    keyed = flow.source(source).key_by(lambda value: value)
    keyed.fold("n", lambda: 0, lambda n, value: (n + 1, (value, n + 1))).sink(sink)
    return flow
