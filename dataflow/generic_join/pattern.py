"""Patterns: all places in a graph where edges lie as a text says, kept up to date.

Guarantees at each time the matches in the edges of that time, each as often as the product of its
edges' counts. Only the edges are kept, by start and by end. Invariant: under flow control each
worker has at most `in_flight` batches of `batch` changed edges in the join, and in each extension
as many of `batch` proposals, or of those of one prefix (Faucet, figure 3). Cost: the matches
of the worst graph with as many edges, times a factor of the pattern's size (Ngo et al.).
"""

from __future__ import annotations

from dataclasses import dataclass

from meander.dataflow.api.collection import ArrangedCollection, Collection
from meander.dataflow.flow_control.batch_size import Size
from meander.dataflow.generic_join.join import GenericJoin
from meander.dataflow.generic_join.join_plan import JoinPlan
from meander.dataflow.generic_join.matches import Matches
from meander.dataflow.generic_join.query import Query, parse
from meander.dataflow.operators.collection.row_type import INTEGERS
from meander.schemas.errors import SetupError
from meander.schemas.option_values import checked_flag, checked_text

BATCH = 10_000
"""The default of a batch. A prefix costs less than a turn does, so smaller ones take longer."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """A pattern of edges between named nodes."""

    query: Query
    distinct: bool

    def matches(
        self,
        edges: Collection,
        name: str = "matches",
        *,
        batch: Size | None = BATCH,
        in_flight: int = 4,
    ) -> Matches:
        """Return the matches of the pattern in a collection of edges, start to end.

        `batch` and `in_flight` are those of `flow_control`, one for the edges, and one for the
        proposals of each further node; with None for `batch` nothing bounds the join.

        Raises SetupError for edges in a loop, and for nodes that are no integers.
        """
        if edges.row_type != INTEGERS:
            raise SetupError(f"pattern {name!r}", f"its edges have rows of {edges.row_type}",
                             "number the nodes, and give it a collection of numbers")  # fmt: skip
        if edges.is_nested:
            raise SetupError(f"pattern {name!r}", "its edges are in a loop or under flow control",
                             "call matches outside of these")  # fmt: skip
        plan = JoinPlan(self.query, self.distinct)
        by_start = edges if isinstance(edges, ArrangedCollection) else None
        arrangements = [by_start or edges.arrange(f"{name} edges")]
        if plan.reads_backward:
            swapped = edges.map(lambda starts, ends: (ends, starts), f"{name} swap")
            arrangements.append(swapped.arrange(f"{name} edges by end"))
        join = GenericJoin(name, plan, arrangements, batch, in_flight)
        orders = [one.order for one in plan.queries]
        return Matches(join.prefixes(), self.query.names, orders, plan.width)


def pattern(text: str, *, distinct: bool = True) -> Pattern:
    """Return a pattern such as "a->b, b->c, a->c". The nodes of a match are distinct; without
    `distinct` two names may stand for one node, as in a conjunctive query.

    Raises SetupError for a text that names no connected edges.

    >>> from meander import Flow, KafkaSink, KafkaSource
    >>> from meander.testing import TestFlow
    >>> flow = Flow("triangles")
    >>> edges = flow.source(KafkaSource("edges")).collection(lambda edge: (*edge, 1))
    >>> triangles = pattern("a->b, b->c, a->c").matches(edges)
    >>> triangles.changes().sink(KafkaSink("triangles"))
    >>> with TestFlow(flow, workers=2) as run:
    ...     run.feed("edges", [1, 2], [2, 3], [1, 3], [3, 4])
    ...     run.run()
    ...     run.values("triangles")
    [{'a': 1, 'b': 2, 'c': 3, 'diff': 1}]
    """
    query = parse(checked_text("pattern", "text", text))
    return Pattern(query, checked_flag(f"pattern {text!r}", "distinct", distinct))
