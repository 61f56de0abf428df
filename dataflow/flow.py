"""The user's API: a flow of streams, defined once in a module and run by `meander run`.

A stream is a value: using it twice forks it. `key_by` exchanges records by key once; the stateful
operators that follow keep the key, and so do map, filter, flat_map and inspect on a keyed stream,
so that a chain of stateful operators on one key travels once.

>>> from dataflow.testing import ListSink, ListSource
>>> flow = Flow("words")
>>> words = flow.source(ListSource([[(1, "dog"), (2, "cat")]]))
>>> counted = words.key_by(lambda w: w).fold("count", lambda: 0, lambda n, w: (n + 1, (w, n + 1)))
>>> counted.sink(ListSink())
>>> [node.name for node in flow.nodes]
['source', 'key_by', 'key_by exchange', 'count', 'sink']
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, TypeVar, cast, overload

from dataflow.nodes import (
    ExchangeNode,
    FoldLogic,
    KeyedNode,
    Node,
    Output,
    ProbeNode,
    ProcessLogic,
    SinkNode,
    SourceNode,
    SplitNode,
    StepsNode,
)
from dataflow.operators.columns import ColumnFold
from dataflow.operators.errors import OnError
from dataflow.operators.keyed import Order
from dataflow.operators.logic import Context, OnTimer, OnValue
from dataflow.operators.steps import Filter, FlatMap, Inspect, KeyBy, Map, Step
from dataflow.protocols import SinkSpec, SourceSpec
from schemas.errors import SetupError
from state.bins import BinSpace
from state.codec import PLAIN, StateCodec

T = TypeVar("T")
U = TypeVar("U")
S = TypeVar("S")

MIB = 1 << 20


class Flow:
    """A named dataflow.

    `bins` is the binary logarithm of the number of key bins, fixed for the flow's life.
    `max_inflight` bounds the bytes that each worker has read and the sinks have not passed,
    `max_waiting` what may wait at one operator or sink, where holding back the sources does not
    help, `link_credit` what is sent from worker to worker and not taken, per exchange and link (the
    last message may go beyond it), `state_memory` the state that each worker's process holds in
    memory (all bytes).
    `control_lead`, in seconds, is how far ahead of the data commands are ruled out: the longest a
    command waits, against stashing.
    """

    def __init__(
        self,
        name: str,
        *,
        bins: int = 8,
        max_inflight: int = 64 * MIB,
        max_waiting: int = 1024 * MIB,
        link_credit: int = 4 * MIB,
        state_memory: int = 256 * MIB,
        control_lead: float = 0.25,
    ) -> None:
        if not name or not all(c.isascii() and (c.isalnum() or c in "-_") for c in name):
            raise SetupError(f"flow {name!r}", "its name becomes part of topic names",
                             "use letters, digits, '-' and '_' only")  # fmt: skip
        bounds = {
            "max_inflight": max_inflight, "max_waiting": max_waiting, "link_credit": link_credit
        }  # fmt: skip
        for what, bytes in bounds.items():
            if bytes < 1:
                raise SetupError(f"flow {name!r}", f"its {what} is {bytes}, so nothing could pass",
                                 "give it a number of bytes")  # fmt: skip
        self.name = name
        self.space = BinSpace(bins)
        self.max_inflight, self.max_waiting = max_inflight, max_waiting
        self.link_credit = link_credit
        self.state_memory, self.control_lead = state_memory, control_lead
        self.nodes: list[Node] = []

    def source(self, spec: SourceSpec, name: str = "source") -> Stream[Any]:
        """A stream of what a source reads."""
        return Stream(self, Output(self.add(SourceNode(self.name_for(name), spec))))

    def add(self, node: Node) -> Node:
        """Take a node into the flow; streams do this."""
        self.nodes.append(node)
        return node

    def name_for(self, wanted: str) -> str:
        """`wanted`, or with a number behind it where that is taken."""
        taken = {node.name for node in self.nodes}
        numbered = (f"{wanted}-{n}" for n in range(2, len(taken) + 3))
        return next(name for name in (wanted, *numbered) if name not in taken)

    def own_name(self, wanted: str) -> str:
        """A name that state is kept under. Raises SetupError where it is taken."""
        if wanted in {node.name for node in self.nodes}:
            raise SetupError(f"operator {wanted!r}", "another operator of the flow has its name",
                             "give each stateful operator a name of its own")  # fmt: skip
        return wanted


class Stream(Generic[T]):
    """Records on their way through a flow."""

    def __init__(self, flow: Flow, at: Output) -> None:
        self._flow, self._at = flow, at

    def map(self, function: Callable[[T], U], *, on_error: OnError = "dead_letter") -> Stream[U]:
        """Each value through a function."""
        return Stream(self._flow, self._step(Map(self._name("map"), function, on_error)))

    def filter(
        self, function: Callable[[T], object], *, on_error: OnError = "dead_letter"
    ) -> Stream[T]:
        """The values for which a function is true."""
        return Stream(self._flow, self._step(Filter(self._name("filter"), function, on_error)))

    def flat_map(
        self, function: Callable[[T], Iterable[U]], *, on_error: OnError = "dead_letter"
    ) -> Stream[U]:
        """Any number of values for each."""
        return Stream(self._flow, self._step(FlatMap(self._name("flat_map"), function, on_error)))

    def inspect(
        self, function: Callable[[T], object], *, on_error: OnError = "dead_letter"
    ) -> Stream[T]:
        """Call a function for its effect."""
        return Stream(self._flow, self._step(Inspect(self._name("inspect"), function, on_error)))

    def key_by(
        self, function: Callable[[T], object], *, on_error: OnError = "dead_letter"
    ) -> KeyedStream[T]:
        """Group by a key, any plain value, and bring each group to one worker."""
        name = self._name("key_by")
        keyed = self._step(KeyBy(name, function, on_error, self._flow.space))
        exchange = ExchangeNode(self._name(f"{name} exchange"), keyed, on_error)
        return KeyedStream(self._flow, self._add(exchange))

    def split(
        self, function: Callable[[T], str], *outputs: str, on_error: OnError = "dead_letter"
    ) -> tuple[Stream[T], ...]:
        """One stream per output named, in that order: each value goes to the one that the function
        names. A value for which it names none has failed.

        >>> from dataflow.testing import ListSource
        >>> numbers = Flow("numbers").source(ListSource([[(1, 5), (2, 8)]]))
        >>> even, odd = numbers.split(lambda n: "odd" if n % 2 else "even", "even", "odd")
        """
        name = self._name("split")
        if not outputs or len(set(outputs)) < len(outputs):
            raise SetupError(f"operator {name!r}", f"its outputs are {outputs!r}",
                             "name each of its outputs once")  # fmt: skip
        node = self._flow.add(SplitNode(name, self._at, function, outputs, on_error))
        return tuple(Stream(self._flow, Output(node, n)) for n in range(len(outputs)))

    def probe(self, name: str) -> Stream[T]:
        """A place whose frontier `meander status` shows under this name."""
        return Stream(self._flow, self._probe(name))

    def sink(
        self, spec: SinkSpec, name: str = "sink", *, on_error: OnError = "dead_letter"
    ) -> None:
        """Send the values out of the flow; `on_error` is for those that the sink cannot encode."""
        self._flow.add(SinkNode(self._name(name), self._at, spec, on_error))

    def _name(self, wanted: str) -> str:
        return self._flow.name_for(wanted)

    def _add(self, node: Node) -> Output:
        return Output(self._flow.add(node))

    def _step(self, step: Step) -> Output:
        return self._add(StepsNode(step.name, self._at, (step,)))

    def _probe(self, name: str) -> Output:
        return self._add(ProbeNode(self._flow.own_name(name), self._at))


class KeyedStream(Stream[T]):
    """Records grouped by key, each group on the worker that owns its bin."""

    @overload
    def fold(
        self,
        name: str,
        init: ColumnFold,
        *,
        order: Order = "time",
        codec: StateCodec = PLAIN,
        on_error: OnError = "dead_letter",
    ) -> KeyedStream[Any]: ...

    @overload
    def fold(
        self,
        name: str,
        init: Callable[[], S],
        step: Callable[[S, T], tuple[S, U]],
        *,
        order: Order = "time",
        codec: StateCodec = PLAIN,
        on_error: OnError = "dead_letter",
    ) -> KeyedStream[U]: ...

    def fold(
        self,
        name: str,
        init: Any,
        step: Any = None,
        *,
        order: Order = "time",
        codec: StateCodec = PLAIN,
        on_error: OnError = "dead_letter",
    ) -> KeyedStream[Any]:
        """One result per record: `(state, value) -> (state, result)`, or a fold over columns
        (`dataflow.columns`) in place of `init` and `step`."""
        if isinstance(init, ColumnFold) is (step is not None):
            raise SetupError(f"operator {name!r}",
                             "a fold needs an init and a step, or a fold over columns alone",
                             "give it a step (state, value) -> (state, result), or in place of both"
                             " a fold such as columns.count()")  # fmt: skip
        logic = init if isinstance(init, ColumnFold) else FoldLogic(init, step)
        node = KeyedNode(self._flow.own_name(name), (self._at,), logic, order, codec, on_error)
        return KeyedStream(self._flow, self._add(node))

    def process(
        self,
        name: str,
        init: Callable[[], S],
        step: Callable[[Context, S, T], S],
        on_timer: Callable[[Context, S], S] | None = None,
        *,
        side: Sequence[str] = (),
        order: Order = "time",
        codec: StateCodec = PLAIN,
        on_error: OnError = "dead_letter",
    ) -> ProcessedStream:
        """Any number of results per record, and timers: `(context, state, value) -> state`.

        `side` names further outputs: `context.emit(value, to="late")` sends to one of them, and
        `.side("late")` of the stream returned is what comes there.
        """
        return self._process(
            name, (self,), init, (cast(OnValue, step),), on_timer, side, order, codec, on_error
        )

    def connect(
        self,
        other: KeyedStream[U],
        name: str,
        init: Callable[[], S],
        left: Callable[[Context, S, T], S],
        right: Callable[[Context, S, U], S],
        on_timer: Callable[[Context, S], S] | None = None,
        *,
        side: Sequence[str] = (),
        order: Order = "time",
        codec: StateCodec = PLAIN,
        on_error: OnError = "dead_letter",
    ) -> ProcessedStream:
        """One state per key for two streams with one key space: as `process`, one function each."""
        if other._flow is not self._flow:
            raise SetupError(f"operator {name!r}",
                             f"its second stream belongs to flow {other._flow.name!r}",
                             "connect streams of one flow")  # fmt: skip
        functions = (cast(OnValue, left), cast(OnValue, right))
        return self._process(
            name, (self, other), init, functions, on_timer, side, order, codec, on_error
        )

    def map(
        self, function: Callable[[T], U], *, on_error: OnError = "dead_letter"
    ) -> KeyedStream[U]:
        """As on any stream; the key stays."""
        return KeyedStream(self._flow, super().map(function, on_error=on_error)._at)

    def filter(
        self, function: Callable[[T], object], *, on_error: OnError = "dead_letter"
    ) -> KeyedStream[T]:
        """As on any stream; the key stays."""
        return KeyedStream(self._flow, super().filter(function, on_error=on_error)._at)

    def flat_map(
        self, function: Callable[[T], Iterable[U]], *, on_error: OnError = "dead_letter"
    ) -> KeyedStream[U]:
        """As on any stream; the key stays."""
        return KeyedStream(self._flow, super().flat_map(function, on_error=on_error)._at)

    def inspect(
        self, function: Callable[[T], object], *, on_error: OnError = "dead_letter"
    ) -> KeyedStream[T]:
        """As on any stream; the key stays."""
        return KeyedStream(self._flow, super().inspect(function, on_error=on_error)._at)

    def split(
        self, function: Callable[[T], str], *outputs: str, on_error: OnError = "dead_letter"
    ) -> tuple[KeyedStream[T], ...]:
        """As on any stream; the key stays."""
        streams = super().split(function, *outputs, on_error=on_error)
        return tuple(KeyedStream(self._flow, stream._at) for stream in streams)

    def probe(self, name: str) -> KeyedStream[T]:
        """As on any stream; the key stays."""
        return KeyedStream(self._flow, self._probe(name))

    def _process(
        self,
        name: str,
        streams: Sequence[KeyedStream[Any]],
        init: Callable[[], object],
        on_values: tuple[OnValue, ...],
        on_timer: Callable[[Context, S], S] | None,
        side: Sequence[str],
        order: Order,
        codec: StateCodec,
        on_error: OnError,
    ) -> ProcessedStream:
        if isinstance(side, str) or len(set(side)) < len(side):
            raise SetupError(f"operator {name!r}", f"its side outputs are {side!r}",
                             "name each of them once, in a list")  # fmt: skip
        logic = ProcessLogic(init, on_values, cast("OnTimer | None", on_timer), tuple(side))
        upstreams = tuple(stream._at for stream in streams)
        node = KeyedNode(self._flow.own_name(name), upstreams, logic, order, codec, on_error)
        return ProcessedStream(self._flow, self._add(node), logic.side)


class ProcessedStream(KeyedStream[Any]):
    """What a process function emits to its first output; `side` is what it emits to others."""

    def __init__(self, flow: Flow, at: Output, side: Sequence[str] = ()) -> None:
        super().__init__(flow, at)
        self._side = side

    def side(self, name: str) -> KeyedStream[Any]:
        """What goes to the side output of a name. Raises SetupError where there is none."""
        if name not in self._side:
            raise SetupError(f"operator {self._at.node.name!r}", f"it has no side output {name!r}",
                             "name it in the `side` of the operator")  # fmt: skip
        return KeyedStream(self._flow, Output(self._at.node, 1 + self._side.index(name)))
