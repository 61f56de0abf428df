"""The matches of a pattern: prefixes that bind all nodes, as a collection or as records.

Guarantees that `changes` gives each match of a time once, with the sum of its diffs. Cost: a sort
of the matches; those of records go to the owner of their hash before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from meander.dataflow.api.collection import Collection
from meander.dataflow.api.nodes import ChangesNode, Output
from meander.dataflow.api.stream import Stream
from meander.dataflow.api.validation import expect_columns
from meander.dataflow.collections.dictionary import Dictionary
from meander.dataflow.generic_join.consolidation import MatchConsolidation, sums
from meander.dataflow.generic_join.prefix_stream import PrefixStream
from meander.dataflow.generic_join.prefixes import Prefixes
from meander.dataflow.operators.collection.functions import ColumnFunction
from meander.dataflow.operators.collection.stateless import Pass, Turn
from meander.dataflow.operators.collection.updates import UpdateCoding, batch_of
from meander.dataflow.operators.custom import OperatorServices
from meander.dataflow.records.batch import Batch
from meander.state.collections.columns import Int64s
from meander.state.collections.kernels import hashes_of

INTEGERS = UpdateCoding(Dictionary(), key=False, value=False)


class Matches:
    """The matches of a pattern in a flow.

    >>> import numpy as np
    >>> from meander import Flow, KafkaSink, KafkaSource, pattern
    >>> from meander.testing import TestFlow
    >>> flow = Flow("paths")
    >>> edges = flow.source(KafkaSource("edges")).collection(lambda edge: (*edge, 1))
    >>> paths = pattern("a->b, b->c").matches(edges)
    >>> middles = paths.collection(lambda a, b, c: (b, np.zeros_like(b)))
    >>> middles.count("paths").changes().sink(KafkaSink("middles"))
    >>> with TestFlow(flow) as run:
    ...     run.feed("edges", [1, 2], [2, 3], [2, 4])
    ...     run.run()
    ...     sum(one["diff"] * one["value"] for one in run.values("middles") if one["key"] == 2)
    2
    """

    def __init__(
        self,
        prefixes: PrefixStream,
        names: Sequence[str],
        orders: Sequence[Sequence[int]],
        width: int,
    ) -> None:
        """`orders` has the nodes of each query in the order in which it binds them, and `width` is
        the number of choices per query."""
        self._prefixes, self._names, self._width = prefixes, names, width
        self._places = np.array([np.argsort(order) for order in orders], np.int64)

    def collection(
        self, function: Callable[..., tuple[Int64s, Int64s]], name: str = "rows of matches"
    ) -> Collection:
        """Return a collection with a row for each match. `function` turns a column per node, in the
        order in which the pattern names them, into columns of keys and values."""
        expect_columns(name, function, [f"the column of {node}" for node in self._names])
        build = partial(_build_pass, turn=self._mapped(name, function))
        mapped = self._prefixes.operator(name, build)
        return Collection(mapped._flow, mapped._at)

    def changes(self, name: str = "matches") -> Stream[dict[str, Any]]:
        """Return the changes as a stream of a number per node, and a diff, each match of a time
        once."""
        keyed = self._prefixes.operator(f"{name} key", partial(_build_pass, turn=self._keyed))
        once = keyed.by_key().operator(f"{name} consolidate", MatchConsolidation, sorts=True)
        flow = once._flow
        node = ChangesNode(flow.name_for(f"{name} changes"), once._at, tuple(self._names))
        return Stream(flow, Output.of(flow.add(node)))

    def _nodes(self, prefixes: Prefixes) -> list[Int64s]:
        """Return a column for each node of the pattern."""
        places = self._places[prefixes.choices // self._width]
        return [prefixes.at(places[:, node]) for node in range(len(self._names))]

    def _mapped(self, name: str, function: Callable[..., tuple[Int64s, Int64s]]) -> Turn:
        columns = ColumnFunction(name, function, (False,) * len(self._names), INTEGERS)

        def turn(batch: Batch) -> Batch:
            prefixes = Prefixes.of(batch, counted=False)
            keys, values = columns.rows(*self._nodes(prefixes))
            (times, keys, values), diffs = sums((prefixes.times, keys, values), prefixes.diffs)
            return batch_of(times, keys, values, diffs)

        return turn

    def _keyed(self, batch: Batch) -> Batch:
        """Return matches by a hash, with their nodes in the order of the pattern."""
        prefixes = Prefixes.of(batch, counted=False)
        nodes, keys = self._nodes(prefixes), np.zeros(len(batch), np.int64)
        for column in nodes:
            keys = hashes_of(keys ^ column).view(np.int64)
        choices = np.zeros(len(batch), np.int64)
        return Prefixes(prefixes.times, choices, tuple(nodes), prefixes.diffs).batch(keys)


def _build_pass(services: OperatorServices, turn: Turn) -> Pass:
    return Pass([services.input], services.output, turn)
