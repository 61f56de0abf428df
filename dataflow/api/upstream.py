"""The part of a flow that a stream comes from."""

from __future__ import annotations

from collections.abc import Sequence

from meander.dataflow.api.nodes import FeedbackNode, Node, upstreams


def ancestors(nodes: Sequence[Node], last: Node) -> list[Node]:
    """Return a node and all nodes of a flow that its records may come through, in the order of the
    flow. A loop comes with its feedback.

    >>> from meander import Flow, KafkaSink, KafkaSource
    >>> flow = Flow("lines")
    >>> lines = flow.source(KafkaSource("lines", value="str"))
    >>> words, counts = lines.flat_map(str.split, name="words"), lines.map(len, name="counts")
    >>> [node.name for node in ancestors(flow.nodes, words._at.node)]
    ['source', 'words']
    """
    found, wanted = dict[str, Node](), [last]
    while wanted:
        node = wanted.pop()
        if node.name in found:
            continue
        found[node.name] = node
        wanted += [one.node for one in upstreams(node)]
        wanted += [one for one in nodes if isinstance(one, FeedbackNode) and one.loop is node]
    return [node for node in nodes if node.name in found]
