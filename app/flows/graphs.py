"""The shipped flows over a changing graph: degrees, distances from roots, connected components.

Each keeps its answer up to date while edges and roots come and go, and gives the changes of the
answer, exactly once. An edge is a record `{"edge": [from, to], "diff": 1}`, a root
`{"root": node, "diff": 1}`. A diff of -1 removes what was added. All changes of one edge belong
into one partition, as its removal must not overtake its addition.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from meander import Checkpointing, Collection, Flow, KafkaSink, KafkaSource

Change = tuple[int, int, int]
"""A key, a value and a diff."""


def edge(record: object) -> Change:
    """Return the change of an edge. Raises ValueError for any other record.

    >>> edge({"edge": [1, 2], "diff": -1})
    (1, 2, -1)
    """
    match record:
        case {"edge": [start, end], "diff": 1 | -1 as diff}:
            return start, end, diff
    raise ValueError('it is no edge, such as {"edge": [1, 2], "diff": 1}, with a diff of 1 or -1')


def root(record: object) -> Change:
    """Return the change of a root, which is at distance 0. Raises ValueError for any other record.

    >>> root({"root": 7, "diff": 1})
    (7, 0, 1)
    """
    match record:
        case {"root": node, "diff": 1 | -1 as diff}:
            return node, 0, diff
    raise ValueError('it is no root, such as {"root": 1, "diff": 1}, with a diff of 1 or -1')


def degrees(edges: Collection) -> Collection:
    """Return how many nodes have each number of edges."""
    nodes = edges.count("degree").map(lambda nodes, counts: (counts, nodes))
    return nodes.count("nodes")


def bfs(edges: Collection, roots: Collection) -> Collection:
    """Return each node that the roots reach, with its distance."""

    def body(nodes: Collection) -> Collection:
        further = nodes.join("further", edges, lambda _, distance, to: (to, distance + 1))
        return further.concat(roots).minimum("nearest")

    return roots.iterate("bfs", body)


def components(edges: Collection) -> Collection:
    """Return each node with the least node that edges in any direction connect it with."""
    both = edges.concat(edges.map(lambda nodes, to: (to, nodes))).distinct("both ways")
    labels = both.map(lambda nodes, _: (nodes, nodes)).distinct("labels")

    def body(found: Collection) -> Collection:
        further = found.join("label", both, lambda _, label, to: (to, label))
        return further.concat(labels).minimum("least")

    return labels.iterate("components", body)


READ: dict[str, Callable[[object], Change]] = {"edges": edge, "roots": root}
"""The topics that the flows read, and how."""


def build(name: str, answer: Callable[..., Collection], *topics: str, prefix: str = "") -> Flow:
    """Return a flow that writes the changes of an answer to the topic of its name; all topics have
    a prefix."""
    flow = Flow(name, delivery="exactly_once", checkpoints=Checkpointing(interval=10))
    inputs = (
        flow.source(KafkaSource(prefix + topic), topic).collection(READ[topic], f"read {topic}")
        for topic in topics
    )
    answer(*inputs).changes().sink(KafkaSink(prefix + name))
    return flow


PREFIX = os.environ.get("MEANDER_GRAPHS_PREFIX", "")
degrees_flow = build("degrees", degrees, "edges", prefix=PREFIX)
bfs_flow = build("bfs", bfs, "edges", "roots", prefix=PREFIX)
components_flow = build("components", components, "edges", prefix=PREFIX)
