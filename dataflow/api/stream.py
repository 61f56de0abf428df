"""The streams of a flow: each method adds an operator that runs once the flow runs.

A stream is a value: two uses of it fork it. A keyed stream keeps its keys through map, filter,
flat_map, split, inspect and probe. A method raises SetupError for an operator that cannot run.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Generic, cast, overload

from typing_extensions import TypeVar

from meander.dataflow.api.builder import Definition
from meander.dataflow.api.in_process import in_process
from meander.dataflow.api.joined import Joinable
from meander.dataflow.api.logics import fold_of, process_of
from meander.dataflow.api.nodes import (
    AsyncMapNode,
    ExchangeNode,
    ExitNode,
    FeedbackNode,
    FoldLogic,
    IngestNode,
    KeyedNode,
    Logic,
    LoopNode,
    Node,
    Output,
    ProbeNode,
    ProcessLogic,
    SinkNode,
    SplitNode,
    StepsNode,
    group_of,
    scope_of,
)
from meander.dataflow.control.colocation import DEFAULT_GROUP
from meander.dataflow.interfaces import SinkSpec
from meander.dataflow.logic.changeable import ChangeableLogic
from meander.dataflow.operators.async_map import CoroutineFunction, ResultOrder
from meander.dataflow.operators.collection.row_type import RowType
from meander.dataflow.operators.keyed.column_fold import ColumnFold
from meander.dataflow.operators.keyed.context import Context, OnTimer, OnValue
from meander.dataflow.operators.keyed.expiry import Expiry, Refresh, expiry_of
from meander.dataflow.operators.keyed.operator import Order
from meander.dataflow.operators.retries import OnError, Retry, fallback
from meander.dataflow.operators.stateless import Filter, FlatMap, Inspect, KeyBy, Map, Step
from meander.dataflow.records.extra_columns import KINDS
from meander.schemas.errors import SetupError
from meander.state.encoding.codec import PLAIN, StateCodec

if TYPE_CHECKING:
    # This loads numba, which takes half a second that other flows do without.
    from meander.dataflow.api.collection import Collection
    from meander.dataflow.api.table import Table
    from meander.dataflow.api.windowed import WindowedStream
    from meander.dataflow.operators.collection.stateless import ReadRow
    from meander.dataflow.windows.window import Windows

T = TypeVar("T")
U = TypeVar("U")
S = TypeVar("S")
K = TypeVar("K", default=Any)
"""The type of the keys of a stream."""
R = TypeVar("R", default=Any)
Left = TypeVar("Left", bound="Stream[Any]")

KeyedOptions = tuple[Order, StateCodec, OnError, bool, Expiry | None]
"""The options of a stateful operator: order, codec, error policy, colocation and expiry."""


class Stream(Joinable[T], Generic[T]):
    """A stream that carries records from one operator to the next."""

    def map(
        self, function: Callable[[T], U], *, on_error: OnError = "dead_letter", name: str = "map"
    ) -> Stream[U]:
        """Apply a function to each value. Return the stream of its results."""
        return Stream(self._flow, self._step(Map(self._name(name), function, on_error)))

    def map_async(
        self,
        name: str,
        function: Callable[[T], Coroutine[Any, Any, U]],
        *,
        concurrency: int = 100,
        timeout: float = 5.0,
        order: ResultOrder = "kept",
        on_error: OnError = "dead_letter",
    ) -> Stream[U]:
        """Apply a coroutine function to each value, such as one that asks an outside service.
        Return the stream of its results.

        At most `concurrency` calls of a worker run at a time, each for at most `timeout` seconds,
        beside the other work of the worker. Results leave in the order of the values, or with
        `order="any"` as calls end. A `Retry` calls the function again without a wait of other
        calls.

        The function counts as nondeterministic: with exactly-once delivery, results behind it wait
        for the checkpoint that holds them. After a restart the calls in flight are made again.

        >>> from meander import Flow, KafkaSink, KafkaSource
        >>> from meander.testing import TestFlow
        >>> async def looked_up(city):
        ...     return {"CPH": "Copenhagen"}[city]
        >>> flow = Flow("cities")
        >>> cities = flow.source(KafkaSource("codes", value="str"))
        >>> cities.map_async("look up", looked_up, concurrency=10).sink(KafkaSink("names"))
        >>> with TestFlow(flow) as run:
        ...     run.feed("codes", "CPH")
        ...     run.run()
        >>> run.values("names")
        ['Copenhagen']
        """
        return Stream(self._flow, self._async_map(name, function, concurrency, timeout, order,
                                                  on_error))  # fmt: skip

    def filter(
        self,
        function: Callable[[T], object],
        *,
        on_error: OnError = "dead_letter",
        name: str = "filter",
    ) -> Stream[T]:
        """Keep the values for which a function returns a true value."""
        return Stream(self._flow, self._step(Filter(self._name(name), function, on_error)))

    def flat_map(
        self,
        function: Callable[[T], Iterable[U]],
        *,
        on_error: OnError = "dead_letter",
        name: str = "flat_map",
    ) -> Stream[U]:
        """Apply a function that returns any number of values for each value. Return the stream of
        them."""
        return Stream(self._flow, self._step(FlatMap(self._name(name), function, on_error)))

    def inspect(
        self,
        function: Callable[[T], object],
        *,
        on_error: OnError = "dead_letter",
        name: str = "inspect",
    ) -> Stream[T]:
        """Call a function for its effect on each value, and pass the value on."""
        return Stream(self._flow, self._step(Inspect(self._name(name), function, on_error)))

    def key_by(
        self,
        function: Callable[[T], K],
        *,
        on_error: OnError = "dead_letter",
        name: str = "key_by",
    ) -> KeyedStream[T, K]:
        """Group records by a key, and send each record to the owner of its bin. A key is any plain
        value. Keys that are equal and of equal types form one group."""
        name = self._name(name)
        keyed = self._step(KeyBy(name, function, on_error, self._flow.space))
        exchange = ExchangeNode(self._name(f"{name} exchange"), keyed, fallback(on_error))
        return KeyedStream(self._flow, self._add(exchange))

    def collection(
        self,
        function: Callable[[T], tuple[object, object, int]],
        name: str = "collection",
        *,
        key: type = int,
        value: type = int,
        on_error: OnError = "dead_letter",
    ) -> Collection:
        """Read changes of a collection. A function gives the key, the value and the diff of each
        record: 1 adds the value to those of the key, -1 removes it. Keys and values are integers of
        64 bits, or plain Python values of the types `key` and `value`."""
        from meander.dataflow.api.collection import Collection

        row_type, name, at = RowType(key, value), self._name(name), self._at
        read: ReadRow = function
        if isinstance(on_error, Retry):
            # The step calls the function, so updates enter the collection in whole batches.
            at = self._step(Map(self._name(f"{name} rows"), function, on_error))
            read, on_error = _as_it_is, on_error.then
        node = IngestNode(name, at, read, on_error, row_type)
        return Collection(self._flow, self._add(node))

    def table(
        self,
        function: Callable[[T], tuple[K, U | None]],
        name: str = "table",
        *,
        ttl: float | None = None,
        on_error: OnError = "dead_letter",
    ) -> Table[K, U]:
        """Return the table of the newest row of each key. A function gives the key of each record,
        and its row, or None where the record deletes the row. `ttl` is that of `flow.table`.

        >>> from meander import Flow, KafkaSink, KafkaSource
        >>> flow = Flow("cities")
        >>> people = flow.source(KafkaSource("people"))
        >>> homes = people.table(lambda person: (person["name"], person["city"]), "homes")
        >>> homes.sink(KafkaSink("homes"))
        """
        from meander.dataflow.api.table import table_of

        changes = self.map(function, on_error=on_error, name=f"{name} row")
        return table_of(changes, name, fallback(on_error), expiry_of(name, ttl, "write"))

    def split(
        self, function: Callable[[T], str], *outputs: str, on_error: OnError = "dead_letter"
    ) -> tuple[Stream[T], ...]:
        """Send each value to the output that a function names, and return one stream per output. A
        value fails where the function names no output.

        >>> from meander import Flow
        >>> from meander.dataflow.simulation.in_memory import ListSource
        >>> numbers = Flow("numbers").source(ListSource([[(1, 5), (2, 8)]]))
        >>> even, odd = numbers.split(lambda n: "odd" if n % 2 else "even", "even", "odd")
        """
        name = self._name("split")
        if not outputs or len(set(outputs)) < len(outputs):
            raise SetupError(f"operator {name!r}", f"its outputs are {outputs!r}",
                             "name each of its outputs once")  # fmt: skip
        node = self._flow.add(SplitNode(name, self._at, function, outputs, on_error))
        return tuple(Stream(self._flow, Output.of(node, n)) for n in range(len(outputs)))

    def iterate(
        self,
        name: str,
        body: Callable[[Stream[T]], tuple[Stream[T], Left]],
        *,
        max_iterations: int = 1000,
        on_error: OnError = "dead_letter",
    ) -> Left:
        """Add a loop. `body` takes the stream of the loop and returns two streams: the values for
        another iteration, and the values that leave. A value that needs more than `max_iterations`
        iterations fails.

        The stream of the loop has no keys, so values lose keys of the body before another
        iteration.

        The body may connect streams from outside the loop. An operator applies records in the order
        of time, then iteration, so results do not depend on the speed of workers.

        >>> from meander import Flow
        >>> from meander.dataflow.simulation.in_memory import ListSink, ListSource
        >>> from meander.testing import TestFlow
        >>> flow, sink = Flow("collatz"), ListSink()
        >>> def step(value):
        ...     start, steps, n = value
        ...     return start, steps + 1, 3 * n + 1 if n % 2 else n // 2
        >>> def body(numbers):
        ...     stepped = numbers.map(step)
        ...     return stepped.split(lambda v: "done" if v[2] == 1 else "again", "again", "done")
        >>> starts = flow.source(ListSource([[(1, 6), (2, 27)]])).map(lambda n: (n, 0, n))
        >>> starts.iterate("steps", body).sink(sink)
        >>> with TestFlow(flow, workers=2) as run:
        ...     run.run()
        >>> sorted(sink.values)
        [(6, 8, 1), (27, 111, 1)]
        """
        loop = LoopNode(self._flow.unused_name(name), self._at)
        entered = Stream[T](self._flow, Output.of(self._flow.add(loop)))
        return self._close_loop(loop, body(entered), max_iterations, on_error)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            if name in {"first", "fold", "process", "connect", "window"}:
                raise SetupError(f"operator {self._at.node.name!r}",
                                 f"{name} needs records with keys, and these have none",
                                 f"call key_by before {name}")  # fmt: skip
            raise AttributeError(name)

    def probe(self, name: str) -> Stream[T]:
        """Add a probe: `meander status` shows the frontier at this place under its name."""
        return Stream(self._flow, self._probe(name))

    def sink(
        self, spec: SinkSpec, name: str = "sink", *, on_error: OnError = "dead_letter"
    ) -> None:
        """Write the values outside the flow. `on_error` decides about values that the sink cannot
        encode."""
        at = self._sink_upstream(on_error) if self._flow.delivery == "exactly_once" else self._at
        self._flow.add(SinkNode(self._name(name), at, spec, on_error))

    def _sink_upstream(self, on_error: OnError) -> Output:
        """Return an output at which the record and its time alone decide about the worker."""
        return self._flow.exchange_by_partition(self._at, on_error)

    def take(self, count: int, *, start: str = "earliest", bootstrap: str | None = None) -> list[T]:
        """Return the first values of the stream, at most `count`, as far as the sources hold them
        now. The part of the flow that they come from runs in this process, as by `Flow.run`.

        >>> import tempfile
        >>> from pathlib import Path
        >>> from meander import FileSource, Flow
        >>> lines = Path(tempfile.mkdtemp()) / "lines.txt"
        >>> _ = lines.write_text("to be or not to be")
        >>> words = Flow("words").source(FileSource(lines, value="str")).flat_map(str.split)
        >>> words.take(3)
        ['to', 'be', 'or']
        """
        if count < 1:
            raise SetupError(f"stream {self._at.node.name!r}", f"it is to give {count} values",
                             "take 1 or more")  # fmt: skip
        found = in_process().take(self._flow, self._at, count, start=start, bootstrap=bootstrap)
        return cast(list[T], found)

    def _close_loop(
        self, loop: LoopNode, ends: tuple[Stream[T], Left], max_iterations: int, on_error: OnError
    ) -> Left:
        _check_ends(loop, ends)
        returning, leaving = ends
        if max_iterations < 1:
            raise SetupError(f"loop {loop.name!r}", f"its max_iterations is {max_iterations}",
                             "give it 1 or more")  # fmt: skip
        back = self._name(f"{loop.name} feedback")
        self._flow.add(FeedbackNode(back, returning._at, loop, max_iterations, on_error))
        out = ExitNode(self._name(f"{loop.name} exit"), leaving._at)
        return type(leaving)(self._flow, self._add(out))

    def _async_map(
        self, name: str, function: CoroutineFunction, concurrency: int, timeout: float,
        order: ResultOrder, on_error: OnError,
    ) -> Output:  # fmt: skip
        name = self._flow.unused_name(name)
        return self._add(
            AsyncMapNode(name, self._at, function, concurrency, timeout, order, on_error)
        )

    def _name(self, wanted: str) -> str:
        return self._flow.name_for(wanted)

    def _add(self, node: Node) -> Output:
        return Output.of(self._flow.add(node))

    def _step(self, step: Step) -> Output:
        return self._add(StepsNode(step.name, self._at, (step,)))

    def _probe(self, name: str) -> Output:
        return self._add(ProbeNode(self._flow.unused_name(name), self._at))


class KeyedStream(Stream[T], Generic[T, K]):
    """A stream that groups records by key, of the type `K`. The owner of a bin holds all groups of
    the bin."""

    @overload
    def fold(
        self,
        name: str,
        init: ColumnFold | ChangeableLogic,
        *,
        order: Order = "event",
        codec: StateCodec = PLAIN,
        on_error: OnError = "dead_letter",
        colocate: bool = True,
        ttl: float | None = None,
        refresh: Refresh = "write",
    ) -> KeyedStream[Any, K]: ...

    @overload
    def fold(
        self,
        name: str,
        init: Callable[[], S],
        step: Callable[[S, T], tuple[S, U]],
        *,
        order: Order = "event",
        codec: StateCodec = PLAIN,
        on_error: OnError = "dead_letter",
        colocate: bool = True,
        ttl: float | None = None,
        refresh: Refresh = "write",
    ) -> KeyedStream[U, K]: ...

    def fold(
        self,
        name: str,
        init: Any,
        step: Any = None,
        *,
        order: Order = "event",
        codec: StateCodec = PLAIN,
        on_error: OnError = "dead_letter",
        colocate: bool = True,
        ttl: float | None = None,
        refresh: Refresh = "write",
    ) -> KeyedStream[Any, K]:
        """Add a fold: `(state, value) -> (state, result)` gives one result per record. A fold over
        columns (`dataflow.columns`) or a `ChangeableLogic` replaces both `init` and `step`.

        With `colocate=False` the bins of the operator move alone, and only where a command names
        the operator.

        With `ttl` a key lives for `ttl` seconds of logical time after its last record, or with
        `refresh="create"` after its first one. Then the operator forgets it, and its next record
        meets a state of `init`.
        """
        if isinstance(init, ColumnFold | ChangeableLogic) is (step is not None):
            raise SetupError(f"operator {name!r}",
                             "a fold needs an init and a step, or a fold over columns alone",
                             "give it a step (state, value) -> (state, result), or in place of both"
                             " a fold such as columns.count()")  # fmt: skip
        logic: Logic
        match init:
            case ColumnFold():
                _checked_uses(name, init.uses)
                logic = init
            case ChangeableLogic():
                logic = fold_of(name, init)
            case _:
                logic = FoldLogic(init, step)
        options = order, codec, on_error, colocate, expiry_of(name, ttl, refresh)
        return KeyedStream(self._flow, self._keyed(name, (self,), logic, options))

    @overload
    def process(
        self,
        name: str,
        init: ChangeableLogic,
        *,
        side: Sequence[str] = (),
        uses: Sequence[str] = (),
        order: Order = "event",
        codec: StateCodec = PLAIN,
        on_error: OnError = "dead_letter",
        colocate: bool = True,
        ttl: float | None = None,
        refresh: Refresh = "write",
    ) -> ProcessedStream[K]: ...

    @overload
    def process(
        self,
        name: str,
        init: Callable[[], S],
        step: Callable[[Context[K], S, T], S],
        on_timer: Callable[[Context[K], S], S] | None = None,
        *,
        on_notify: Callable[[Context[K], S], S] | None = None,
        on_alarm: Callable[[Context[K], S], S] | None = None,
        side: Sequence[str] = (),
        uses: Sequence[str] = (),
        order: Order = "event",
        codec: StateCodec = PLAIN,
        on_error: OnError = "dead_letter",
        colocate: bool = True,
        ttl: float | None = None,
        refresh: Refresh = "write",
    ) -> ProcessedStream[K]: ...

    def process(
        self,
        name: str,
        init: Any,
        step: Any = None,
        on_timer: Any = None,
        *,
        on_notify: Any = None,
        on_alarm: Any = None,
        side: Sequence[str] = (),
        uses: Sequence[str] = (),
        order: Order = "event",
        codec: StateCodec = PLAIN,
        on_error: OnError = "dead_letter",
        colocate: bool = True,
        ttl: float | None = None,
        refresh: Refresh = "write",
    ) -> ProcessedStream[K]:
        """Add a process function: `(context, state, value) -> state` emits any number of results
        and sets timers (`Context`). A `ChangeableLogic` replaces all functions.

        `on_timer` is called once a timer of `context.timer(ms)` is due, `on_alarm` once an alarm of
        `context.alarm(seconds)` is due by the wall clock. With `on_alarm` the operator counts as
        nondeterministic: in a flow that delivers exactly once, results behind it wait for the
        checkpoint that holds them.

        A key asks for `on_notify` with `context.notify()`. The call comes once all records of that
        time, and in a loop of that iteration, have been applied. It can send their total.

        `side` names side outputs: `context.emit(value, to="late")` sends to one of them, and
        `.side("late")` of the returned stream reads it.

        A key lives until `context.forget()`, or with `ttl` for so many seconds of logical time.
        `refresh` renews that time when the state changes ("write"), with each record or call
        ("read"), or never ("create"). Expiry sends nothing; a timer of the key meets a state of
        `init`.
        `uses` names properties of the records that the functions read: with `uses=["event_ms"]`
        each record brings its own time as `context.event_ms`.
        """
        options = order, codec, on_error, colocate, expiry_of(name, ttl, refresh)
        if isinstance(init, ChangeableLogic):
            if (step, on_timer, on_notify, on_alarm) != (None, None, None, None):
                raise SetupError(f"operator {name!r}", "its logic has all functions, and it gets"
                                 " others beside it", "give it the logic alone")  # fmt: skip
            _check_side(name, side)
            logic = process_of(name, init, tuple(side), _checked_uses(name, uses))
            return ProcessedStream(self._flow, self._keyed(name, (self,), logic, options), side)
        functions = (cast(OnValue, step),)
        back = on_timer, on_notify, on_alarm
        return self._process(name, (self,), init, functions, back, side, uses, options)

    def first(
        self,
        name: str,
        *,
        within: float | None = None,
        order: Order = "event",
        on_error: OnError = "dead_letter",
        colocate: bool = True,
    ) -> KeyedStream[T, K]:
        """Pass the first record of each key, and drop the others: deduplication. With `within` a
        record passes again that comes so many seconds of logical time after the last one that
        passed.

        >>> from meander import Flow, KafkaSink, KafkaSource
        >>> from meander.testing import TestFlow
        >>> flow = Flow("orders")
        >>> orders = flow.source(KafkaSource("orders", time=lambda order: order["ms"]))
        >>> unique = orders.key_by(lambda order: order["id"]).first("seen", within=3600)
        >>> unique.map(lambda order: order["ms"]).sink(KafkaSink("unique"))
        >>> with TestFlow(flow) as run:
        ...     run.feed("orders", *({"id": 7, "ms": ms} for ms in (0, 3_599_999, 3_600_000)))
        ...     run.run()
        >>> run.values("unique")
        [0, 3600000]
        """
        expiry = None if within is None else expiry_of(name, within, "create")
        options = order, PLAIN, on_error, colocate, expiry
        functions = (cast(OnValue, _pass_first),)
        seen = self._process(name, (self,), bool, functions, (None, None, None), (), (), options)
        return KeyedStream(self._flow, seen._at)

    def window(
        self,
        name: str,
        windows: Windows,
        *,
        on_error: OnError = "dead_letter",
        colocate: bool = True,
    ) -> WindowedStream[T, K]:
        """Put the records of each key into windows, by their own times: `tumbling`, `hopping`,
        `sliding`, `session` or `count`. `fold`, `reduce` or `process` of the returned stream says
        what a window gives.

        A window closes once the frontier reaches `late` seconds behind its end. A record whose
        logical time is that or later is late for the window.

        >>> from meander import Flow, KafkaSink, KafkaSource, field, tumbling
        >>> from meander.testing import TestFlow
        >>> flow = Flow("views")
        >>> views = flow.source(KafkaSource("views", time=field("at")))
        >>> by_page = views.key_by(lambda view: view["page"]).window("views", tumbling(60, late=10))
        >>> by_page.fold(int, lambda n, _: n + 1).sink(KafkaSink("counts"))
        >>> with TestFlow(flow) as run:
        ...     run.feed("views", *({"page": "home", "at": at} for at in (1, 60_000, 2, 70_000, 3)))
        ...     run.run()
        >>> first, second = run.values("counts")
        >>> first
        {'key': 'home', 'start': 0, 'end': 60000, 'value': 2}
        """
        from meander.dataflow.api.windowed import WindowedStream

        return WindowedStream(self, name, windows, on_error, colocate)

    def connect(
        self,
        other: KeyedStream[U, K],
        name: str,
        init: Callable[[], S],
        left: Callable[[Context[K], S, T], S],
        right: Callable[[Context[K], S, U], S],
        on_timer: Callable[[Context[K], S], S] | None = None,
        *,
        on_notify: Callable[[Context[K], S], S] | None = None,
        on_alarm: Callable[[Context[K], S], S] | None = None,
        side: Sequence[str] = (),
        uses: Sequence[str] = (),
        order: Order = "event",
        codec: StateCodec = PLAIN,
        on_error: OnError = "dead_letter",
        colocate: bool = True,
        ttl: float | None = None,
        refresh: Refresh = "write",
    ) -> ProcessedStream[K]:
        """Join two streams by key: both share one state per key, and each has its own function. The
        other options are those of `process`."""
        functions = (cast(OnValue, left), cast(OnValue, right))
        options = order, codec, on_error, colocate, expiry_of(name, ttl, refresh)
        back = on_timer, on_notify, on_alarm
        return self._process(name, (self, other), init, functions, back, side, uses, options)

    def map(
        self,
        function: Callable[[T], U],
        *,
        on_error: OnError = "dead_letter",
        name: str = "map",
    ) -> KeyedStream[U, K]:
        """Apply a function to each value as `Stream.map` does, and keep the key."""
        return KeyedStream(self._flow, super().map(function, on_error=on_error, name=name)._at)

    def map_async(
        self,
        name: str,
        function: Callable[[T], Coroutine[Any, Any, U]],
        *,
        concurrency: int = 100,
        timeout: float = 5.0,
        order: ResultOrder = "kept",
        on_error: OnError = "dead_letter",
    ) -> KeyedStream[U]:
        """Apply a coroutine function to each value as `Stream.map_async` does, and keep the key."""
        return KeyedStream(self._flow, self._async_map(name, function, concurrency, timeout, order,
                                                       on_error))  # fmt: skip

    def filter(
        self,
        function: Callable[[T], object],
        *,
        on_error: OnError = "dead_letter",
        name: str = "filter",
    ) -> KeyedStream[T, K]:
        """Filter values as `Stream.filter` does, and keep the key."""
        return KeyedStream(self._flow, super().filter(function, on_error=on_error, name=name)._at)

    def flat_map(
        self,
        function: Callable[[T], Iterable[U]],
        *,
        on_error: OnError = "dead_letter",
        name: str = "flat_map",
    ) -> KeyedStream[U, K]:
        """Apply a function as `Stream.flat_map` does, and keep the key."""
        return KeyedStream(self._flow, super().flat_map(function, on_error=on_error, name=name)._at)

    def inspect(
        self,
        function: Callable[[T], object],
        *,
        on_error: OnError = "dead_letter",
        name: str = "inspect",
    ) -> KeyedStream[T, K]:
        """Call a function as `Stream.inspect` does, and keep the key."""
        return KeyedStream(self._flow, super().inspect(function, on_error=on_error, name=name)._at)

    def split(
        self, function: Callable[[T], str], *outputs: str, on_error: OnError = "dead_letter"
    ) -> tuple[KeyedStream[T, K], ...]:
        """Split the stream as `Stream.split` does, and keep the key."""
        streams = super().split(function, *outputs, on_error=on_error)
        return tuple(KeyedStream(self._flow, stream._at) for stream in streams)

    def iterate(
        self,
        name: str,
        body: Callable[[KeyedStream[T, K]], tuple[Stream[T], Left]],
        *,
        max_iterations: int = 1000,
        on_error: OnError = "dead_letter",
    ) -> Left:
        """Add a loop as `Stream.iterate` does, and keep the key. The values for another iteration
        must have a key too."""
        loop = LoopNode(self._flow.unused_name(name), self._at)
        ends = body(KeyedStream[T, K](self._flow, Output.of(self._flow.add(loop))))
        _check_ends(loop, ends)
        if not isinstance(ends[0], KeyedStream):
            raise SetupError(f"loop {name!r}", "values for another iteration have no key",
                             "end their stream with key_by")  # fmt: skip
        returning = self._flow.exchange_for(ends[0]._at, group_of(self._at.node), on_error)
        ends = Stream(self._flow, returning), ends[1]
        return self._close_loop(loop, ends, max_iterations, on_error)

    def probe(self, name: str) -> KeyedStream[T, K]:
        """Add a probe as `Stream.probe` does, and keep the key."""
        return KeyedStream(self._flow, self._probe(name))

    def _sink_upstream(self, _: OnError) -> Output:
        return self._at

    def _process(
        self,
        name: str,
        streams: Sequence[KeyedStream[Any]],
        init: Callable[[], object],
        on_values: tuple[OnValue, ...],
        back: Sequence[Callable[[Context[K], S], S] | None],
        side: Sequence[str],
        uses: Sequence[str],
        options: KeyedOptions,
    ) -> ProcessedStream[K]:
        _check_side(name, side)
        on_timer, on_notify, on_alarm = (cast("OnTimer | None", function) for function in back)
        used = _checked_uses(name, uses)
        logic = ProcessLogic(init, on_values, on_timer, on_notify, on_alarm, tuple(side), uses=used)
        at = self._keyed(name, streams, logic, options)
        return ProcessedStream(self._flow, at, logic.side)

    def _keyed(
        self,
        name: str,
        streams: Sequence[KeyedStream[Any]],
        logic: Logic,
        options: KeyedOptions,
    ) -> Output:
        """Add a stateful operator. Add an exchange before it where its bins may have other owners
        than those of the records."""
        for one in streams:
            if one._flow is not self._flow:
                raise SetupError(f"operator {name!r}",
                                 f"its second stream belongs to flow {one._flow.name!r}",
                                 "connect streams of one flow")  # fmt: skip
        *_, on_error, colocate, _ = options
        group = DEFAULT_GROUP if colocate else name
        upstreams = tuple(self._flow.exchange_for(one._at, group, on_error) for one in streams)
        return self._add(KeyedNode(self._flow.unused_name(name), upstreams, logic, *options))


def _check_side(name: str, side: Sequence[str]) -> None:
    if isinstance(side, str) or len(set(side)) < len(side):
        raise SetupError(f"operator {name!r}", f"its side outputs are {side!r}",
                         "name each of them once, in a list")  # fmt: skip


def _checked_uses(name: str, uses: Sequence[str]) -> tuple[str, ...]:
    unknown = [uses] if isinstance(uses, str) else [one for one in uses if one not in KINDS]
    if unknown:
        raise SetupError(f"operator {name!r}", f"its uses are {uses!r}",
                         f"list any of {', '.join(map(repr, KINDS))}")  # fmt: skip
    return tuple(uses)


def _check_ends(loop: LoopNode, ends: object) -> None:
    """Raise SetupError where the result of a body cannot close a loop."""
    match ends:
        case (Stream() as returning, Stream() as left) if (
            returning._at.scope == left._at.scope == scope_of(loop)
        ):
            return
    raise SetupError(f"loop {loop.name!r}", "its body did not return two streams of the loop",
                     "return the values for another iteration, and those that leave")  # fmt: skip


class ProcessedStream(KeyedStream[R, K], Generic[K, R]):
    """A stream that carries the main output of a process function, of the type `R`. `side` gives
    its side outputs."""

    def __init__(self, flow: Definition, at: Output, side: Sequence[str] = ()) -> None:
        super().__init__(flow, at)
        self._side = side

    def side(self, name: str) -> KeyedStream[Any, K]:
        """Return the stream of a side output. Raises SetupError for an unknown name."""
        if name not in self._side:
            raise SetupError(f"operator {self._at.node.name!r}", f"it has no side output {name!r}",
                             "name it in the `side` of the operator")  # fmt: skip
        return KeyedStream(self._flow, Output.of(self._at.node, 1 + self._side.index(name)))


def _pass_first(context: Context, passed: bool, value: object) -> bool:
    if not passed:
        context.emit(value)
    return True


def _as_it_is(change: tuple[Any, Any, int]) -> tuple[Any, Any, int]:
    return change
