"""Collections on real processes: the answer at each time is that of the graph at that time, and no
change of it is there twice, whatever moves, comes, goes or dies meanwhile."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from meander.app.flows.cliques import triangles_flow
from meander.app.flows.graphs import bfs_flow
from meander.testing import TestFlow
from tests.support.kafka.brokers import Broker
from tests.support.kafka.topics import PATIENCE, until
from tests.support.process.clique_flow import CliqueFlow
from tests.support.process.flow_process import kill, meander
from tests.support.process.graph_flow import GraphFlow

pytestmark = pytest.mark.timeout(2 * PATIENCE)
Record = Callable[[str, object], None]


@pytest.fixture(scope="module", autouse=True)
def compiled_loops() -> None:
    """Compile the loops of collections once. It takes a minute where none are on disk, and workers
    then load them."""
    root, request = ("roots", {"root": 1, "diff": 1}), ("requests", {"node": 1, "diff": 1})
    for flow, (topic, record) in (bfs_flow, root), (triangles_flow, request):
        with TestFlow(flow, workers=2, dead_letters="allow") as run:
            run.feed("edges", *[{"edge": [n, n % 7], "diff": 1} for n in range(20)])
            run.feed(topic, record)
            run.run()


FLOWS: dict[str, Callable[[Broker, str, Path, int], GraphFlow]] = {
    "distances": GraphFlow,
    "triangles": CliqueFlow,
}


@pytest.fixture(params=FLOWS)
def graph(
    broker: Broker, prefix: str, tmp_path: Path, record_property: Record,
    request: pytest.FixtureRequest,
) -> Iterator[GraphFlow]:  # fmt: skip
    graph = FLOWS[request.param](broker, prefix, tmp_path, 11)
    yield graph
    graph.check()
    for what, count in graph.counts.items():
        record_property(f"real collections, {request.param}: {what}", count)


def test_answers_follow_a_graph_whatever_moves_comes_goes_and_dies(
    graph: GraphFlow, broker: Broker, tmp_path: Path
) -> None:
    graph.feed()
    words = graph.run("--workers", "2", "--master", "local[4]")
    with meander(tmp_path, broker.bootstrap, *words) as flow:
        flow.until_event("started")
        graph.feed()
        graph.feed_nonsense()
        graph.command("migrate", "--bins", "0-127", "--worker", "1")
        graph.feed()
        graph.until_answered(flow)
        graph.feed()
        graph.command("rescale", "--workers", "3")
        graph.feed()
        graph.command("rescale", "--workers", "2")
        graph.feed()
        flow.until_event("checkpointed")
        graph.feed()
        kill(flow.workers[1])
        until(lambda: len(flow.of("started")) > 1, f"it lives again: {flow.said}")
        graph.feed()
        graph.until_answered(flow)
        taken = len(flow.of("checkpointed"))
        until(lambda: len(flow.of("checkpointed")) > taken, "checkpoints go on")
        graph.feed()
        kill(flow.process.pid)
        flow.until_gone()
    graph.feed()
    words = graph.run("--workers", "3", "--wait")
    with meander(tmp_path, broker.bootstrap, *words) as flow:
        flow.until_event("started")
        graph.feed()
        graph.until_answered(flow)
        kill(flow.process.pid, signal.SIGINT)
        assert flow.exit_code() == 128 + signal.SIGINT, flow.said
    graph.check_dead_letters()
    graph.counts.update({"deaths of a worker": 1, "deaths of the driver": 1})
