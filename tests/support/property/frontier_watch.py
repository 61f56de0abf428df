"""Frontiers of a whole flow, watched by brute force (I1).

Outstanding pointstamps are read from messages on links and at inputs and from live capabilities.
A walk over the graph gives their results; progress tracking has no part in that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from meander import Flow
from meander.dataflow.graph.graph import Graph, Location
from meander.dataflow.progress.capability import Capability
from meander.dataflow.progress.progress import Progress
from meander.dataflow.simulation.in_memory import ListSink, ListSource
from meander.dataflow.wire import DATA, DataFrame, decode
from meander.state.store.store import Databases
from meander.state.times.time import Time
from meander.testing import TestFlow
from tests.support.progress.graphs import walked
from tests.support.progress.world import Pointstamp
from tests.support.property import shapes
from tests.support.property.cases import Case

LOOKS = 0.2
"""How often all frontiers are checked, per step."""


class WatchedFlow:
    """A flow on simulated workers whose frontiers are checked as it runs."""

    def __init__(self, run: TestFlow, made: list[Capability]) -> None:
        self.run, self.made = run, made
        self.graph: Graph = run.sim.plan.graph
        # Outputs without an edge are only counted: no message results from them.
        sources = {edge.source for edge in self.graph.edges}
        self.leads = {at for node in self.graph.nodes for at in node.inputs} | sources
        self.known: dict[Pointstamp, set[Pointstamp]] = {}
        self.looks = 0

    def play(self) -> None:
        sim = self.run.sim
        while not sim.done:
            sim.act()
            if sim.rng.random() < LOOKS:
                self.look()
        self.look()
        for progress in self.members():
            assert not any(progress.frontier(at) for at in self.everywhere()), "all is over (I7)"
        assert not set(self.outstanding())

    def look(self) -> None:
        self.looks += 1
        results: dict[Location, set[Time]] = {}
        for pointstamp in set(self.outstanding()):
            for at, time in self.results(pointstamp):
                results.setdefault(at, set()).add(time)
        for progress in self.members():
            if progress.ready:
                for at, times in results.items():
                    frontier = progress.frontier(at)
                    ahead = [time for time in times if not frontier.less_equal(time)]
                    assert not ahead, f"{frontier} at {at} is ahead of {ahead} (I1)"

    def outstanding(self) -> Iterator[Pointstamp]:
        self.made[:] = [capability for capability in self.made if capability._live]
        yield from ((c.location, c.time) for c in self.made if c.location in self.leads)
        for worker in self.run.workers:
            for at, port in worker.parts.operators.inputs.items():
                yield from ((at, message.time) for message in port.waiting)
        network = self.run.sim.network
        under_way = [frame for lane in network.frames.values() for frame in lane]
        under_way += [frame for inbox in network.inboxes.values() for _, frame in inbox]
        for message in (decode(frame) for frame in under_way if frame[0][:1] == DATA):
            assert isinstance(message, DataFrame)
            yield self.graph.edges[message.edge].target, message.time

    def results(self, pointstamp: Pointstamp) -> set[Pointstamp]:
        if pointstamp not in self.known:
            self.known[pointstamp] = walked(self.graph, *pointstamp)
        return self.known[pointstamp]

    def members(self) -> Iterator[Progress]:
        yield from (worker.parts.progress for worker in self.run.workers)
        yield self.run.sim.coordinator.progress

    def everywhere(self) -> Iterator[Location]:
        return map(Location, range(self.graph.locations))


def flow_of(case: Case) -> Flow:
    flow = Flow("f", bins=case.bits, max_inflight=case.max_inflight)
    source = flow.source(ListSource(case.partitions, case.options))
    other = None
    if case.kind == "connect":
        second = flow.source(ListSource(case.partitions[::-1], case.options), "other")
        other = second.key_by(shapes.key)
    shapes.define(case.kind, source.key_by(shapes.key), other).sink(ListSink())
    return flow


def watch_frontiers(
    case: Case,
    namespace: int,
    databases: Databases,
    made: list[Capability],
    flow: Callable[[Case], Flow] = flow_of,
) -> Counter[str]:
    """Run a case and check its frontiers; return the number of checks, and of each event."""
    made.clear()
    run = TestFlow(
        flow(case),
        case.workers,
        case.seed,
        dead_letters="allow",
        commands=case.script,
        databases=databases,
        namespace=namespace,
    )
    with run:
        watched = WatchedFlow(run, made)
        watched.play()
        return Counter(looks=watched.looks) + Counter(str(one["type"]) for one in run.events)
