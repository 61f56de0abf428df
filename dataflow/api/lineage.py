"""The lineage of each input: the operators before it, and the operators behind it.

Guarantees that an input of two flow versions counts as one input where the names before and behind
it agree. The names of steps, splits and exchanges follow from the order of definition, so they
alone do not identify an input. Two readers of one output lead to different ends, as each input has
one upstream. Cost: O(operators squared), once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

from meander.dataflow.api.nodes import (
    FeedbackNode,
    KeyedNode,
    LoopNode,
    MapUpdatesNode,
    MergeNode,
    Node,
    Output,
    ProbeNode,
    SinkNode,
    SourceNode,
    SplitNode,
    StatefulCollectionNode,
    StatefulNode,
    side_outputs,
    upstreams,
)
from meander.state.checkpoint.checkpoint import InputLineage

Lineages = Mapping[tuple[str, int], InputLineage]
"""The input lineages, by operator and number of the input."""
Readers = Mapping[str, Sequence[tuple[Node, int]]]
"""The readers of each operator, with the number of the input that reads."""


def input_lineages(nodes: Sequence[Node], outboxes: Collection[str]) -> Lineages:
    """Return the lineage of each input that receives records, in order of definition."""
    readers = defaultdict[str, list[tuple[Node, int]]](list)
    found = dict[tuple[str, int], tuple[Node, tuple[str, ...]]]()
    for node in nodes:
        for number, upstream in enumerate(upstreams(node)):
            readers[upstream.node.name].append((node, number))
            found[node.name, number] = node, _operators_passed(upstream)
        match node:
            case FeedbackNode(loop=loop):
                readers[node.name].append((loop, 1))
                passed = (*_operators_passed(node.upstream), f"operator {node.name!r}")
                found[loop.name, 1] = loop, passed
            case SinkNode() if node.name in outboxes:
                found[node.name, 1] = found[node.name, 0]
            case _ if isinstance(node, StatefulCollectionNode):
                # The output of a step that a checkpoint has interrupted.
                found[node.name, len(upstreams(node))] = found[node.name, 0]
    return {
        (name, number): InputLineage(
            name, number, passed, tuple(sorted(_ends(node, number, readers)))
        )
        for (name, number), (node, passed) in found.items()
    }


def _operators_passed(output: Output) -> tuple[str, ...]:
    """Return the operators that records of an output have passed."""
    found = list[str]()
    while True:
        match output.node:
            case SourceNode(name=name):
                return (f"source {name!r}", *reversed(found))
            case KeyedNode(name=name) as node if output.number:
                side = side_outputs(node)
                return (_output(side[output.number - 1], name), *reversed(found))
            case node if isinstance(node, StatefulNode | MapUpdatesNode | MergeNode):
                return (f"operator {node.name!r}", *reversed(found))
            case SplitNode(name=name, outputs=outputs):
                found.append(_output(outputs[output.number], name))
            case LoopNode(name=name):
                found.append(f"loop {name!r}")
            case ProbeNode():
                pass
            case node:
                found.append(f"operator {node.name!r}")
        (output,) = upstreams(output.node)


def _output(name: str, node: str) -> str:
    return f"output {name!r} of operator {node!r}"


def _ends(node: Node, number: int, readers: Readers) -> set[str]:
    """Return the ends that records of an input reach. A probe is an end, besides those behind
    it."""
    match node:
        case _ if isinstance(node, StatefulNode):
            return {f"input {number} of operator {node.name!r}" if len(upstreams(node)) > 1
                    else f"operator {node.name!r}"}  # fmt: skip
        case SinkNode(name=name):
            return {f"sink {name!r}"}
        case LoopNode(name=name):
            return {f"loop {name!r}"}
    shown = {f"probe {node.name!r}"} if isinstance(node, ProbeNode) else set[str]()
    return shown.union(*(_ends(one, at, readers) for one, at in readers[node.name]))
