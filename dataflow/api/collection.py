"""The collections of a flow: multisets of values per key, kept up to date as changes come in.

A collection is a value: two uses of it fork it. Keys and values are integers of 64 bits, or plain
Python values. Functions take columns, not records: numpy arrays, or an `ObjectColumn` of Python
values. A change has a logical time, and the changes of the answer have the same one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from meander.dataflow.api.extensible import Extensible
from meander.dataflow.api.nodes import (
    ArrangeNode,
    ChangesNode,
    ConsolidateNode,
    CountNode,
    EnterNode,
    ExchangeNode,
    ExitNode,
    FeedbackNode,
    JoinNode,
    LoopNode,
    MapKind,
    MapUpdatesNode,
    Node,
    OperatorNode,
    Output,
    ReduceNode,
    row_type_of,
    upstreams,
)
from meander.dataflow.api.stream import KeyedStream, Stream
from meander.dataflow.operators.collection.row_type import RowType
from meander.schemas.errors import SetupError

if TYPE_CHECKING:
    from meander.dataflow.collections import reduce
    from meander.dataflow.collections.join import Function as JoinFunction
    from meander.state.collections.columns import Bools, Int64s
    from meander.state.encoding.value_columns import Column

MAX_ITERATIONS = 1 << 20
"""The iterations after which a loop counts as endless."""
_CONSOLIDATED = ArrangeNode | ConsolidateNode | CountNode | ReduceNode
"""The operators whose output has each row of a time once."""


class Collection(Extensible):
    """A collection that a flow keeps up to date.

    >>> from meander import Flow, KafkaSink, KafkaSource
    >>> from meander.testing import TestFlow
    >>> flow = Flow("degrees")
    >>> edges = flow.source(KafkaSource("edges")).collection(lambda edge: (*edge, 1))
    >>> edges.count("degree").changes().sink(KafkaSink("degrees"))
    >>> with TestFlow(flow) as run:
    ...     run.feed("edges", [1, 2], [1, 3])
    ...     run.run()
    ...     sum(one["diff"] * one["value"] for one in run.values("degrees"))
    2
    """

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            if name.startswith("_") or not hasattr(KeyedStream, name):
                raise AttributeError(name)
            path = "changes()" if hasattr(Stream, name) else "changes().key_by(...)"
            raise SetupError(f"operator {self._at.node.name!r}",
                             f"{name} needs a stream, and this is a collection",
                             f"call changes() first, as in .{path}.{name}(...)")  # fmt: skip

    # -- without state

    def map(
        self,
        function: Callable[..., tuple[Column, Column]],
        name: str = "map",
        *,
        key: type | None = None,
        value: type | None = None,
    ) -> Collection:
        """Turn columns of keys and values into other keys and values, row for row. `key` and
        `value` are their types, where these are not the ones of before.

        >>> import numpy as np
        >>> from meander import Flow, KafkaSink, KafkaSource
        >>> from meander.testing import TestFlow
        >>> flow = Flow("cities")
        >>> cities = flow.source(KafkaSource("people")).collection(
        ...     lambda person: (person["city"], person["name"], 1), key=str, value=str
        ... )
        >>> def by_length(city, name):
        ...     return np.array([len(one) for one in city]), name
        >>> lengths = cities.map(by_length, key=int)
        >>> lengths.count("people").changes().sink(KafkaSink("lengths"))
        >>> with TestFlow(flow) as run:
        ...     run.feed("people", {"city": "Rome", "name": "Ada"}, {"city": "Oslo", "name": "Bo"})
        ...     run.run()
        ...     run.values("lengths")[-1]
        {'key': 4, 'value': 2, 'diff': 1}
        """
        return self._map(name, "map", function, self._row_type(key, value))

    def filter(self, function: Callable[..., Bools], name: str = "filter") -> Collection:
        """Keep the rows for which a function of columns of keys and values is true."""
        return self._map(name, "filter", function)

    def flat_map(
        self,
        function: Callable[..., tuple[Column, Column, Int64s]],
        name: str = "flat_map",
        *,
        key: type | None = None,
        value: type | None = None,
    ) -> Collection:
        """Turn columns of keys and values into any number of rows: keys, values, and the place of
        the row of which each is a result. `key` and `value` are as for `map`."""
        return self._map(name, "flat_map", function, self._row_type(key, value))

    def negate(self) -> Collection:
        """Turn additions into removals, and removals into additions."""
        return self._map("negate", "negate")

    def concat(self, *others: Collection) -> Collection:
        """Return the rows of this collection and of others."""
        name = self._name("concat")
        for other in others:
            self._expect_alike(f"operator {name!r}", _expected(f"operator {name!r}", other))
        read = (self._at, *(other._at for other in others))
        return self._add(MapUpdatesNode(name, read, "concat", row_type=self.row_type))

    # -- with state

    def arrange(self, name: str) -> ArrangedCollection:
        """Keep this collection by key once, for all joins and reductions that use the result."""
        node = ArrangeNode(self._flow.unused_name(name), self._by_key())
        return ArrangedCollection(self._flow, Output.of(self._flow.add(node)))

    def join(
        self,
        name: str,
        other: Collection,
        function: JoinFunction,
        *,
        key: type | None = None,
        value: type | None = None,
    ) -> Collection:
        """Pair the values of equal keys. `function` turns columns of keys, own values and other
        values into columns of keys and values. `key` and `value` are as for `map`."""
        theirs = _expected(f"operator {name!r}", other).row_type.key
        if theirs is not self.row_type.key and int in (theirs, self.row_type.key):
            raise SetupError(
                f"operator {name!r}",
                f"its keys are {self.row_type.key.__name__}, and {theirs.__name__} on the other"
                " side",
                "map one side, so that both have keys of one type",
            )
        sides = self._by_key(), other._by_key()
        row_type = self._row_type(key, value)
        return self._add(JoinNode(self._flow.unused_name(name), sides, function, row_type))

    def reduce(
        self, name: str, function: reduce.Function, *, value: type | None = None
    ) -> Collection:
        """Turn the values of each key into others. `function` takes a column of keys and the
        `Groups` of their values, and returns `Groups`. A key without values gets none. `value` is
        the type of the new values, where it is not the one of before.

        >>> import numpy as np
        >>> from meander import Groups
        >>> def greatest(keys, groups):
        ...     starts, ends = groups.starts[:-1], groups.starts[1:]
        ...     some = ends > starts
        ...     ones = np.ones(some.sum(), np.int64)
        ...     return Groups(np.append(0, some.cumsum()), groups.values[ends[some] - 1], ones)
        >>> two = Groups(np.array([0, 2, 3]), np.array([5, 9, 4]), np.array([1, 1, 1]))
        >>> greatest(np.array([7, 8]), two).values
        array([9, 4])
        """
        row_type = self._row_type(None, value)
        return self._add(
            ReduceNode(self._flow.unused_name(name), self._by_key(), function, row_type)
        )

    def count(self, name: str) -> Collection:
        """Return the number of values of each key. In a loop it looks at all rows of a key that
        changes, so map the values of a key with many of them to 0 first."""
        if not self.is_nested:
            row_type = self._row_type(None, int)
            return self._add(CountNode(self._flow.unused_name(name), self._by_key(), row_type))
        from meander.dataflow.collections.reduce import count

        return self.reduce(name, count, value=int)

    def distinct(self, name: str) -> Collection:
        """Return each value of a key once."""
        from meander.dataflow.collections.reduce import distinct

        return self.reduce(name, distinct)

    def minimum(self, name: str) -> Collection:
        """Return the least value of each key."""
        from meander.dataflow.collections.reduce import minimum

        return self.reduce(name, minimum)

    def top(self, name: str, most: int) -> Collection:
        """Return the `most` least values of each key."""
        from meander.dataflow.collections.reduce import top

        if most < 1:
            raise SetupError(f"operator {name!r}", f"its most is {most}", "give it 1 or more")
        return self.reduce(name, top(most))

    def consolidate(self) -> Collection:
        """Give each row once per time, with the sum of its diffs."""
        if isinstance(self._at.node, _CONSOLIDATED) and not self.is_nested:
            return self
        return self._add(ConsolidateNode(self._name("consolidate"), self._by_key()))

    def iterate(
        self,
        name: str,
        body: Callable[[Collection], Collection],
        *,
        max_iterations: int = MAX_ITERATIONS,
    ) -> Collection:
        """Apply a body again and again to its own result, first to this collection, until it gives
        what it was given. The body may use collections from outside the loop."""
        if max_iterations < 1:
            raise SetupError(f"loop {name!r}", f"its max_iterations is {max_iterations}",
                             "give it 1 or more")  # fmt: skip
        loop = LoopNode(self._flow.unused_name(name), self._at)
        variable = Collection(self._flow, Output.of(self._flow.add(loop)))
        result = _expected(f"loop {name!r}", body(variable))
        if result._at.scope != variable._at.scope:
            raise SetupError(
                f"loop {name!r}",
                "its body did not return a collection of the loop",
                "return a collection that follows from the body's argument",
            )
        variable._expect_alike(f"loop {name!r}", result)
        # The entry adds this collection in the first iteration, so it does not return.
        rest = result.concat(self.negate())
        if _unsummed(rest._at, loop):
            # Else rows that cancel each other would go round for ever.
            rest = rest.consolidate()
        back = self._name(f"{name} feedback")
        feedback = FeedbackNode(back, rest._at, loop, max_iterations, "fail", collection=True)
        self._flow.add(feedback)
        return self._add(ExitNode(self._name(f"{name} exit"), result._at))

    # -- leaving

    def changes(self) -> Stream[dict[str, Any]]:
        """Return the changes as a stream of `{"key", "value", "diff"}`, each row of a time once."""
        once = self.consolidate()
        node = ChangesNode(self._name("changes"), once._at)
        return Stream(self._flow, Output.of(self._flow.add(node)))

    def _map(
        self,
        name: str,
        kind: MapKind,
        function: Callable[..., object] | None = None,
        row_type: RowType | None = None,
    ) -> Collection:
        row_type = row_type or self.row_type
        return self._add(MapUpdatesNode(self._name(name), (self._at,), kind, function, row_type))

    @property
    def row_type(self) -> RowType:
        """Return the types of the keys and values."""
        return row_type_of(self._at.node)

    def _row_type(self, key: type | None, value: type | None) -> RowType:
        """Return the types of rows that an operator makes of these, where they may be others."""
        mine = self.row_type
        return RowType(mine.key if key is None else key, mine.value if value is None else value)

    def _expect_alike(self, subject: str, other: Collection) -> None:
        if other.row_type != self.row_type:
            raise SetupError(
                subject,
                f"it has rows of {self.row_type}, and of {other.row_type}",
                "map one collection, so that both have rows of the same types",
            )

    def _by_key(self) -> Output:
        name = self._name(f"{self._at.node.name} exchange")
        return Output.of(self._flow.add(ExchangeNode(name, self._at, "fail", collection=True)))

    def _name(self, wanted: str) -> str:
        return self._flow.name_for(wanted)

    def _add(self, node: Node) -> Collection:
        return Collection(self._flow, Output.of(self._flow.add(node)))


class ArrangedCollection(Collection):
    """A collection that a flow keeps by key once, whatever joins and reductions use it.

    >>> from meander import Flow, KafkaSink, KafkaSource
    >>> from meander.testing import TestFlow
    >>> flow = Flow("two_hops")
    >>> edges = flow.source(KafkaSource("edges")).collection(lambda edge: (*edge, 1))
    >>> arranged = edges.arrange("edges")
    >>> back = edges.map(lambda nodes, to: (to, nodes))
    >>> hops = back.join("hops", arranged, lambda _, first, last: (first, last))
    >>> hops.changes().sink(KafkaSink("hops"))
    >>> with TestFlow(flow) as run:
    ...     run.feed("edges", [1, 2], [2, 3])
    ...     run.run()
    ...     (hop,) = run.values("hops")
    >>> hop["key"], hop["value"]
    (1, 3)
    """

    def _by_key(self) -> Output:
        return self._at


def _expected(subject: str, given: object) -> Collection:
    """Return a collection as one. Raises SetupError for anything else."""
    if not isinstance(given, Collection):
        raise SetupError(subject, f"it gets {given!r}",
                         "give it a collection, such as stream.collection(...)")  # fmt: skip
    return given


def _unsummed(at: Output, loop: LoopNode) -> bool:
    """Return whether updates come from the entry of a loop to an output without an operator that
    adds them up."""
    passing = MapUpdatesNode | LoopNode | EnterNode | ExitNode | OperatorNode
    if isinstance(at.node, passing) and at.node is not loop:
        return any(_unsummed(before, loop) for before in upstreams(at.node))
    return at.node is loop
