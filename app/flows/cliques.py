"""The shipped flows that find cliques in a changing graph: triangles, and cliques of four nodes.

Each keeps two answers up to date while edges come and go, and gives their changes, exactly once:
how many cliques each node and the graph have, and the cliques of requested nodes. An edge is a
record `{"edge": [1, 2], "diff": 1}` in either direction, and counts once however often it is there.
A request is `{"node": 1, "diff": 1}`. A diff of -1 removes what was added. All changes of one edge
in either direction belong into one partition, as its removal must not overtake its addition.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt

from meander import Checkpointing, Collection, Flow, KafkaSink, KafkaSource, Stream, pattern

Nodes = npt.NDArray[np.int64]
Change = dict[str, Any]
"""A change of an answer."""
NAMES = "abcd"


def edge(record: object) -> tuple[int, int, int]:
    """Return the change of an edge, from its lesser node to its greater one. Raises ValueError for
    any other record.

    >>> edge({"edge": [2, 1], "diff": -1})
    (1, 2, -1)
    """
    match record:
        case {"edge": [int(one), int(other)], "diff": 1 | -1 as diff} if one != other:
            return min(one, other), max(one, other), diff
    raise ValueError("it is no edge between two different integers, such as"
                     ' {"edge": [1, 2], "diff": 1}, with a diff of 1 or -1')  # fmt: skip


def request(record: object) -> tuple[int, int, int]:
    """Return the change of a request for the cliques of a node. Raises ValueError for any other
    record.

    >>> request({"node": 7, "diff": 1})
    (7, 0, 1)
    """
    match record:
        case {"node": node, "diff": 1 | -1 as diff}:
            return node, 0, diff
    raise ValueError('it is no request, such as {"node": 1, "diff": 1}, with a diff of 1 or -1')


def clique(size: int) -> str:
    """Return the pattern of a clique, whose edges lead from lesser nodes to greater ones.

    >>> clique(3)
    'a->b, a->c, b->c'
    """
    return ", ".join(f"{one}->{other}" for one, other in combinations(NAMES[:size], 2))


def counts(edges: Collection, size: int) -> tuple[Collection, Collection]:
    """Return the number of cliques of each node, and that of all cliques under the key 0."""
    found = pattern(clique(size)).matches(edges, "cliques")
    rows = (found.collection(partial(_by_node, place)) for place in range(size))
    nodes = next(rows).concat(*rows)
    every = found.collection(lambda *nodes: (np.zeros_like(nodes[0]), np.zeros_like(nodes[0])))
    return nodes.count("cliques per node"), every.count("cliques")


def requested(edges: Collection, requests: Collection, size: int) -> Stream[Change]:
    """Return the changes of the cliques of requested nodes."""
    near = edges_around(edges, requests)
    found = pattern(clique(size)).matches(near, "cliques nearby").changes()
    cliques = found.flat_map(_of_each_node).collection(lambda row: row, key=int, value=tuple)
    return (
        cliques.join("requested", requests, lambda node, nodes, _: (node, nodes))
        .changes()
        .map(lambda one: {"node": one["key"], "clique": one["value"], "diff": one["diff"]})
    )


def edges_around(edges: Collection, nodes: Collection) -> Collection:
    """Return the edges whose two ends are some nodes or neighbours of these."""
    back = edges.map(lambda starts, ends: (ends, starts))
    near = nodes.concat(
        nodes.join("greater neighbours", edges, lambda _, zeros, others: (others, zeros)),
        nodes.join("lesser neighbours", back, lambda _, zeros, others: (others, zeros)),
    )
    near = near.distinct("nearby").arrange("nodes nearby")
    starts = edges.join("starts nearby", near, lambda start, end, _: (end, start))
    return starts.join("edges nearby", near, lambda end, start, _: (start, end))


def build(name: str, size: int, *, prefix: str = "") -> Flow:
    """Return a flow that writes the changes of counts to the topic of its name, and those of the
    cliques of requested nodes to the topic `NAME-requested`; all topics have a prefix."""
    flow = Flow(name, delivery="exactly_once", checkpoints=Checkpointing(interval=10))
    edges = flow.source(KafkaSource(prefix + "edges"), "edges").collection(edge, "read edges")
    requests = flow.source(KafkaSource(prefix + "requests"), "requests")
    write(edges, requests.collection(request, "read requests"), size, prefix + name)
    return flow


def write(edges: Collection, requests: Collection, size: int, topic: str) -> None:
    """Write the changes of both answers about a graph."""
    edges = edges.distinct("each edge once").arrange("arranged edges")
    nodes, every = counts(edges, size)
    nodes.changes().map(_of_node).sink(KafkaSink(topic))
    every.changes().map(_of_graph).sink(KafkaSink(topic))
    requests = requests.distinct("each request once")
    requested(edges, requests, size).sink(KafkaSink(f"{topic}-requested"))


def _by_node(place: int, *nodes: Nodes) -> tuple[Nodes, Nodes]:
    return nodes[place], np.zeros_like(nodes[place])


def _of_each_node(found: Change) -> Iterator[tuple[int, tuple[int, ...], int]]:
    """Yield the change of a clique under each of its nodes."""
    *nodes, diff = found.values()
    yield from ((node, tuple(nodes), diff) for node in nodes)


def _of_node(change: Change) -> Change:
    return {"node": change["key"], "cliques": change["value"], "diff": change["diff"]}


def _of_graph(change: Change) -> Change:
    return {"node": None, "cliques": change["value"], "diff": change["diff"]}


PREFIX = os.environ.get("MEANDER_GRAPHS_PREFIX", "")
triangles_flow = build("triangles", 3, prefix=PREFIX)
four_cliques_flow = build("four-cliques", 4, prefix=PREFIX)
