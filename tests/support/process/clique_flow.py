"""A flow over the triangles of a changing graph as a process."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations
from pathlib import Path
from typing import ClassVar

from tests.support.collections.clique_flows import expected_counts, expected_requested
from tests.support.kafka.brokers import Broker
from tests.support.process.graph_flow import NODES, GraphFlow

NONSENSE = dict.fromkeys(
    (b'{"edge":[3,3],"diff":1}', b'{"edge":["a",2],"diff":1}', b'{"node":1,"diff":1}'),
    "it is no edge between two different integers, such as",
)

MODULE = """
from meander import Checkpointing, Flow, KafkaSink, KafkaSource
from meander.app.flows.cliques import edge, request, write

flow = Flow("graph", delivery="exactly_once", checkpoints=Checkpointing(interval=0.5))
edges = flow.source(KafkaSource("{prefix}edges"), "edges").collection(edge)
requests = flow.source(KafkaSource("{prefix}roots"), "requests").collection(request)
edges.changes().sink(KafkaSink("{prefix}edges-read"))
requests.changes().sink(KafkaSink("{prefix}roots-read"))
write(edges, requests, 3, "{prefix}triangles")
"""
ANSWERS = {"triangles": expected_counts(3), "triangles-requested": expected_requested(3)}


class CliqueFlow(GraphFlow):
    """A flow over edges in either direction, and over requests in place of roots."""

    many: ClassVar = {"edges": 32, "roots": 3}
    copies = 2
    nonsense = NONSENSE

    def __init__(self, broker: Broker, prefix: str, folder: Path, seed: int) -> None:
        super().__init__(broker, prefix, folder, seed, MODULE, ANSWERS)

    def _possible(self, name: str) -> Iterable[tuple[int, int]]:
        return combinations(range(NODES), 2) if name == "edges" else super()._possible(name)

    def _record(self, name: str, row: tuple[int, int]) -> dict[str, object]:
        if name == "edges":
            return {"edge": self._rng.sample(row, 2)}
        return {"node": row[0]}
