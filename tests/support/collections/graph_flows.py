"""Flows over a changing graph on simulated workers, and what networkx computes of the same graph.

No partition counts as idle, so the logical times of a run depend on the input alone.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, product
from math import prod
from typing import Any, NamedTuple

import networkx as nx

from meander import Checkpointing, Collection, Flow, flow_control, pattern
from meander.app.flows.graphs import bfs, components, degrees
from meander.dataflow.api.nodes import Guarantee
from meander.dataflow.interfaces import SourceOptions
from meander.dataflow.simulation.in_memory import ListSink, ListSource
from meander.dataflow.simulation.simulator import DurableWorld
from meander.state.times.time import to_millis
from meander.testing import At, Control
from tests.support.collections.clique_flows import answers, expected_answers
from tests.support.collections.surviving_flow import SurvivingFlow, surviving

Edge = tuple[int, int]
Answer = Counter[tuple[int, int]]
Change = tuple[int, int, int]
"""A key, a value and a diff."""


def expected_degrees(edges: Counter[Edge], _: Counter[Edge]) -> Answer:
    """Compute `degrees` from all edges."""
    return Counter(Counter(Counter(node for node, _ in edges.elements()).values()).items())


def expected_bfs(edges: Counter[Edge], roots: Counter[Edge]) -> Answer:
    """Compute `bfs` from all edges."""
    graph = nx.DiGraph(list(edges))
    graph.add_nodes_from(root for root, _ in roots)
    sources = {root for root, _ in roots}
    if not sources:
        return Counter()
    found = nx.multi_source_dijkstra_path_length(graph, sources, weight=lambda *_: 1)
    return Counter((node, int(distance)) for node, distance in found.items())


def shared(edges: Collection, roots: Collection) -> Collection:
    """Return each reached node with edges: its distance, and how many edges leave it. One
    arrangement serves a join in a loop and a reduction outside, another one two joins."""
    arranged = edges.arrange("edges")
    degree = arranged.count("degree").arrange("degrees")
    nodes = bfs(arranged, roots).arrange("nodes")
    both = nodes.join("both", degree, lambda node, distance, edges: (node, distance * 100 + edges))
    again = degree.join("again", nodes, lambda node, edges, distance: (node, distance))
    return both.concat(again)


def expected_shared(edges: Counter[Edge], roots: Counter[Edge]) -> Answer:
    """Compute `shared` from all edges."""
    degrees = Counter(node for node, _ in edges.elements())
    found = Answer()
    for node, distance in expected_bfs(edges, roots):
        if degrees[node]:
            found.update([(node, distance * 100 + degrees[node]), (node, distance)])
    return found


def expected_components(edges: Counter[Edge], _: Counter[Edge]) -> Answer:
    """Compute `components` from all edges."""
    found = nx.connected_components(nx.Graph(list(edges)))
    return Counter((node, min(nodes)) for nodes in found for node in nodes)


def hops(edges: Collection, _: Collection) -> Collection:
    """Return the number of ways of two edges between each two nodes, the first edge under flow
    control."""
    arranged = edges.arrange("edges")
    with flow_control(edges.map(lambda start, end: (end, start)), batch=2, in_flight=2) as inner:
        both = inner.join("hops", arranged, lambda _, first, last: (first * 1000 + last, first))
        return both.count("ways").leave()


def expected_hops(edges: Counter[Edge], _: Counter[Edge]) -> Answer:
    """Compute `hops` from all edges."""
    ways = Counter[int]()
    for (start, middle), first in edges.items():
        for (other, end), second in edges.items():
            if middle == other:
                ways[start * 1000 + end] += first * second
    return Counter(ways.items())


def found(text: str, edges: Collection, distinct: bool = True, batch: int | None = 2) -> Collection:
    """Return the matches of a pattern by their first node; the others make the value."""
    matches = pattern(text, distinct=distinct).matches(edges, batch=batch, in_flight=2)
    if text == TRIANGLE:
        return matches.changes().collection(_of_record)
    return matches.collection(lambda first, *others: (first, _digits(others)))


def expected_found(text: str, edges: Counter[Edge], distinct: bool = True) -> Answer:
    """Try all bindings of the nodes of a pattern."""
    pairs = [tuple(part.strip().split("->")) for part in text.split(",")]
    names = list(dict.fromkeys(chain.from_iterable(pairs)))
    nodes = sorted({node for edge in edges for node in edge})
    answer = Answer()
    for chosen in product(nodes, repeat=len(names)):
        if distinct and len(set(chosen)) < len(names):
            continue
        bound = dict(zip(names, chosen, strict=True))
        count = prod(edges[bound[start], bound[end]] for start, end in pairs)
        if count:
            answer[chosen[0], _digits(chosen[1:])] += count
    return answer


def _of_record(match: dict[str, int]) -> tuple[int, int, int]:
    first, *others, diff = match.values()
    return first, _digits(others), diff


def _digits(nodes: Sequence[Any]) -> Any:
    return sum(node * 100**place for place, node in enumerate(nodes))


TRIANGLE, DIAMOND, TWO_WAY = "a->b, b->c, a->c", "a->b, a->c, b->d, c->d", "a->b, b->a, b->c"


@dataclass(frozen=True)
class GraphFlow:
    """A flow over edges and roots, and the same computed from all of them at once."""

    build: Callable[[Collection, Collection], Collection]
    expected: Callable[[Counter[Edge], Counter[Edge]], Answer]
    named: bool = False
    """Whether nodes are names in place of numbers."""


GRAPH_FLOWS = {
    "degrees": GraphFlow(lambda edges, _: degrees(edges), expected_degrees),
    "bfs": GraphFlow(bfs, expected_bfs),
    "shared": GraphFlow(shared, expected_shared),
    "hops": GraphFlow(hops, expected_hops),
    "triangles": GraphFlow(
        lambda edges, _: found(TRIANGLE, edges), lambda edges, _: expected_found(TRIANGLE, edges)
    ),
    "diamonds": GraphFlow(
        lambda edges, _: found(DIAMOND, edges, distinct=False),
        lambda edges, _: expected_found(DIAMOND, edges, distinct=False),
    ),
    "two-way": GraphFlow(
        lambda edges, _: found(TWO_WAY, edges.arrange("shared"), distinct=False, batch=None),
        lambda edges, _: expected_found(TWO_WAY, edges, distinct=False),
    ),
    "cliques": GraphFlow(answers(3), expected_answers(3)),
    "components": GraphFlow(lambda edges, _: components(edges), expected_components),
    "shared by name": GraphFlow(shared, expected_shared, named=True),
    "components by name": GraphFlow(
        lambda edges, _: components(edges), expected_components, named=True
    ),
}


@dataclass(frozen=True)
class History:
    """Changes of edges and of roots, each with its time in milliseconds."""

    edges: Sequence[tuple[int, Change]]
    roots: Sequence[tuple[int, Change]]
    partitions: int = 1


def random_history(rng: random.Random, nodes: int, changes: int) -> History:
    """Return additions of edges and roots, and removals of some that there are."""
    present = Counter[tuple[str, Edge]]()
    found = {"edge": list[tuple[int, Change]](), "root": list[tuple[int, Change]]()}
    millis = 1
    for _ in range(changes):
        millis += rng.randint(1, 3)
        which = "root" if rng.random() < 0.15 else "edge"
        there = sorted(edge for (kind, edge), n in present.items() if kind == which and n)
        if there and rng.random() < 0.45:
            edge, diff = rng.choice(there), -1
        else:
            node = rng.randrange(nodes)
            edge, diff = (node, 0 if which == "root" else rng.randrange(nodes)), 1
            if present[which, edge]:
                continue
        present[which, edge] += diff
        found[which].append((millis, (*edge, diff)))
    return History(found["edge"], found["root"], rng.randint(1, 3))


@dataclass
class GraphRun:
    """The changes of an answer, and the times of all changes of the input."""

    changes: list[tuple[int, int, int, int]] = field(default_factory=list)
    """Each with its time in milliseconds, in the order of time."""
    world: DurableWorld | None = None
    """The topics with the checkpoints of the run."""
    bins_survived: int = 0
    """The bins that survivors of deaths had in their stores."""

    def at(self, millis: int) -> Answer:
        """Return the answer at a time."""
        found = Answer()
        for when, key, value, diff in self.changes:
            if when <= millis:
                found[key, value] += diff
        return Answer({row: count for row, count in found.items() if count})


BINS = 3
"""The bits of the bins of a flow."""


def random_faults(rng: random.Random, workers: int, records: int) -> list[At]:
    """Return moves and rescales in the course of so many records."""
    faults = list[At]()
    for number in range(rng.randint(2, 5)):
        command: dict[str, object] = {"id": f"c{number}"}
        if rng.random() < 0.7:
            bins = rng.sample(range(1 << BINS), rng.randint(1, 1 << BINS))
            command |= {"type": "migrate", "bins": bins, "worker": rng.randrange(workers)}
            command |= {"strategy": rng.choice(["batched", "fluid", "all-at-once"])}
        else:
            command |= {"type": "rescale", "workers": rng.randint(1, 4)}
        faults.append(At(Control(command), records=rng.randrange(1, records)))
    return faults


class Case(NamedTuple):
    """A history, and what happens to the flow that reads it."""

    history: History
    workers: int
    seed: int
    faults: Sequence[At]
    deaths: Sequence[int]


def random_case(seed: int, nodes: int, changes: int) -> Case:
    """Return a case from a seed alone."""
    rng = random.Random(seed)
    history, workers = random_history(rng, nodes, changes), rng.randint(1, 3)
    faults = random_faults(rng, workers, len(history.edges) + len(history.roots))
    deaths = [rng.randrange(50, 2000) for _ in range(rng.randint(0, 3))]
    return Case(history, workers, seed, faults, deaths)


def run(
    graph: GraphFlow,
    history: History,
    workers: int,
    seed: int,
    faults: Sequence[At] = (),
    deaths: Sequence[int] = (),
    retained: int = 3,
) -> GraphRun:
    """Run a flow over a history on simulated workers; with faults it takes checkpoints. It is
    killed after each number of steps in `deaths`, and starts again; some workers survive."""
    checkpoints = Checkpointing(interval=0.01 if faults else None, retained=retained)
    delivery: Guarantee = "exactly_once" if faults else "at_least_once"
    flow = Flow("graph", bins=BINS, delivery=delivery, checkpoints=checkpoints)
    sink = ListSink()
    lists: list[list[tuple[int, Change]]] = [[] for _ in range(history.partitions)]
    for when, (key, value, diff) in history.edges:
        # An edge has one partition, so its removal stays behind its addition.
        lists[(key + value) % history.partitions].append((when, (key, value, diff)))
    patient = SourceOptions(idle_after=1e6)
    kind = str if graph.named else int
    edges = flow.source(ListSource(lists, patient)).collection(
        _named if graph.named else _as_it_is, key=kind, value=kind
    )
    roots = flow.source(ListSource([[*history.roots]], patient)).collection(
        _named_key if graph.named else _as_it_is, key=kind
    )
    graph.build(edges, roots).changes().sink(sink)
    run, world = GraphRun(), None
    with surviving(seed) as survivors:
        start = partial(SurvivingFlow, flow, seed=seed, survivors=survivors)
        for steps in deaths:
            with start(workers, faults=[*faults], world=world) as test:
                while test.sim.actions < steps and not test.sim.done:
                    test.act()
                world = test.world
            survivors.draw()
            workers = survivors.chance.choice([workers, survivors.chance.randint(1, 4)])
        # After a death too few records may be left for the faults.
        with start(workers, faults=[] if deaths else [*faults], world=world) as test:
            test.run()
        run.world, run.bins_survived = test.world, survivors.bins
    run.changes = sorted((to_millis(one.time), *_row(one.value)) for one in sink.results)
    return run


def _as_it_is(change: Change) -> Change:
    return change


def _named(change: Change) -> tuple[str, str, int]:
    key, value, diff = change
    return f"node {key}", f"node {value}", diff


def _named_key(change: Change) -> tuple[str, int, int]:
    key, value, diff = change
    return f"node {key}", value, diff


def _row(value: object) -> tuple[int, int, int]:
    assert isinstance(value, dict)
    return _number(value["key"]), _number(value["value"]), value["diff"]


def _number(node: int | str) -> int:
    return node if isinstance(node, int) else int(node.removeprefix("node "))


def expected_at(graph: GraphFlow, history: History, millis: int) -> Answer:
    """Compute the answer at a time anew."""
    return graph.expected(*input_at(history, millis))


def input_at(history: History, millis: int) -> tuple[Counter[Edge], Counter[Edge]]:
    """Return the edges and the roots at a time."""
    sums = []
    for changes in (history.edges, history.roots):
        counts = Counter[Edge]()
        for when, (key, value, diff) in changes:
            if when <= millis:
                counts[key, value] += diff
        sums.append(+counts)
    edges, roots = sums
    return edges, roots
