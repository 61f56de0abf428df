"""The windows of a keyed stream: `fold`, `reduce` and `process` say what each window gives.

Each of them adds one stateful operator with a process function (`windows/logic.py`), so windows
move, recover and deliver as any state does. A method raises SetupError for windows that cannot
work.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, Literal, get_args, overload

from typing_extensions import TypeVar

from meander.dataflow.api.builder import Definition
from meander.dataflow.api.nodes import Output, ProcessLogic
from meander.dataflow.api.stream import KeyedOptions, KeyedStream, ProcessedStream
from meander.dataflow.operators.keyed.column_fold import ColumnFold
from meander.dataflow.operators.retries import OnError
from meander.dataflow.records.extra_columns import EVENT_MS
from meander.dataflow.windows.aggregation import (
    Aggregation,
    NoResult,
    WindowColumns,
    WindowContext,
    WindowFold,
    WindowProcess,
    WindowReduction,
    WindowResult,
)
from meander.dataflow.windows.columnar import LATE_COUNTER, ColumnarWindows
from meander.dataflow.windows.logic import (
    LATE,
    CountedWindows,
    Emission,
    TimedWindows,
    WindowLogic,
)
from meander.dataflow.windows.sliding import SlidingWindows
from meander.dataflow.windows.top import Top, WindowTop, part_of, window_of
from meander.dataflow.windows.window import Counts, Hopping, Sessions, Sliding, Windows, described
from meander.schemas.errors import SetupError
from meander.schemas.option_values import checked_whole
from meander.state.encoding.codec import PLAIN, PlainCodec

T = TypeVar("T")
S = TypeVar("S")
K = TypeVar("K", default=Any)
V = TypeVar("V", default=Any)

Emit = Literal["closed", "each"] | float
"""When a window gives results: as it closes, with each record, or at an interval in seconds."""


class WindowedStream(Generic[T, K]):
    """A keyed stream whose records lie in windows."""

    def __init__(
        self,
        stream: KeyedStream[T, K],
        name: str,
        windows: Windows,
        on_error: OnError = "dead_letter",
        colocate: bool = True,
    ) -> None:
        if not isinstance(windows, get_args(Windows)):
            raise SetupError(f"operator {name!r}", f"its windows are {windows!r}",
                             "give it such as tumbling(60)")  # fmt: skip
        self._stream, self._name, self._windows = stream, name, windows
        self._on_error, self._colocate = on_error, colocate

    @overload
    def fold(self, init: ColumnFold, *, emit: Emit = "closed") -> WindowResults[K, Any]: ...

    @overload
    def fold(
        self,
        init: Callable[[], S],
        step: Callable[[S, T], S],
        *,
        merge: Callable[[S, S], S] | None = None,
        emit: Emit = "closed",
    ) -> WindowResults[K, S]: ...

    def fold(
        self, init: Any, step: Any = None, *, merge: Any = None, emit: Emit = "closed"
    ) -> WindowResults[K, Any]:
        """Fold the records of each window, in the total order: `(state, value) -> state`. The
        result of a window is its state. A fold over columns such as `columns.count()` replaces
        `init`, `step` and `merge`. The result is that of the fold, and most windows get faster.

        Sessions need `merge`, from the states of an earlier and a later session to one state. With
        `emit="each"` each record gives the result so far, and the close gives none. With a number
        of seconds a window that has changed gives its result so far at each multiple of them in
        logical time, and the last one as it closes.

        `.side("late")` of the result carries the records that are late for all their windows.

        >>> from meander import Flow, KafkaSink, KafkaSource, columns, tumbling
        >>> flow = Flow("views")
        >>> views = flow.source(KafkaSource("views")).key_by(lambda view: view["page"])
        >>> views.window("views", tumbling(60)).fold(columns.count()).sink(KafkaSink("counts"))
        """
        emission = Emission.of(self._name, emit)
        if not isinstance(init, ColumnFold):
            if step is None:
                raise SetupError(
                    f"operator {self._name!r}", "a fold needs an init and a step, or a fold over"
                    " columns alone", "give it a step (state, value) -> state, or in place of both"
                    " a fold such as columns.count()",
                )  # fmt: skip
            return self._with("fold", WindowFold(init, step, merge), merge is not None, emission)
        if step is not None or merge is not None:
            raise SetupError(
                f"operator {self._name!r}", "it has a fold over columns and another step or merge",
                "give it the fold alone, which may have a merge=",
            )  # fmt: skip
        return self._columnar(init, emission)

    def reduce(
        self, function: Callable[[T, T], T], *, emit: Emit = "closed"
    ) -> WindowResults[K, T]:
        """Reduce the values of each window to one by an associative function of two. The options
        and side outputs are those of `fold`.

        >>> from meander import Flow, KafkaSink, KafkaSource, session
        >>> from meander.testing import TestFlow
        >>> flow = Flow("visits")
        >>> costs = flow.source(KafkaSource("costs", pairs=True)).key_by(lambda cost: cost[0])
        >>> sums = costs.map(lambda cost: cost[1]).window("sum", session(30))
        >>> sums.reduce(lambda a, b: a + b).sink(KafkaSink("sums"))
        """
        reduction = WindowReduction(function)
        return self._with("reduce", reduction, True, Emission.of(self._name, emit))

    def process(
        self,
        init: Callable[[], S],
        step: Callable[[WindowContext[K], S, T], S],
        on_close: Callable[[WindowContext[K], S], object],
        *,
        merge: Callable[[S, S], S] | None = None,
        side: Sequence[str] = (),
    ) -> ProcessedStream[K]:
        """Call functions with the records of each window and with its close. Both may emit results:
        `(context, state, value) -> state` and `(context, state) -> None`. `context.window` is the
        window. It may still grow, if it is a session or a count.

        `side` names side outputs besides "late". Sessions need `merge`, as in `fold`.
        """
        functions = WindowProcess(init, step, on_close, merge)
        return self._with("process", functions, merge is not None, Emission(), side)

    def _columnar(self, fold: ColumnFold, emission: Emission) -> WindowResults[K, Any]:
        """Add the operator of a fold over columns, in columns where all records of a pass can be
        folded before windows close."""
        name, aggregate = fold.definition, WindowColumns(fold)
        if not isinstance(self._windows, Hopping | Sessions) or emission != Emission():
            return self._with(name, aggregate, fold.merge is not None, emission, uses=fold.uses)
        self._check_merge(fold.merge is not None)
        logic = ColumnarWindows(self._windows, fold)
        form = "panes" if logic.in_panes else "columns"
        return self._added(logic, f"{name} in {form}", has_top=isinstance(self._windows, Hopping))

    def _check_merge(self, has_merge: bool) -> None:
        if self._windows.merges and not has_merge:
            raise SetupError(
                f"operator {self._name!r}", "a record may merge its sessions, and it cannot merge"
                " their states", "give it merge=, from two states to one",
            )  # fmt: skip

    def _added(
        self, logic: ProcessLogic | ColumnarWindows, aggregate: str, has_top: bool
    ) -> WindowResults[K, Any]:
        """Add the operator. Its layers carry its definition."""
        codec = PlainCodec.of(f"{described(self._windows)} with {aggregate}")
        options: KeyedOptions = "event", codec, self._on_error, self._colocate, None
        at = self._stream._keyed(self._name, (self._stream,), logic, options)
        return WindowResults(self._stream._flow, at, logic.side, has_top=has_top)

    def _with(
        self,
        name: str,
        aggregation: Aggregation,
        has_merge: bool,
        emission: Emission,
        side: Sequence[str] = (),
        uses: Sequence[str] = (),
    ) -> WindowResults[K, Any]:
        """Add an operator whose aggregation takes one record after the other."""
        self._check_merge(has_merge)
        if isinstance(side, str) or len({*side, LATE}) <= len(side):
            raise SetupError(f"operator {self._name!r}", f"its side outputs are {side!r}",
                             f"name each once, in a list, and none {LATE!r}")  # fmt: skip
        logic = self._logic(aggregation, emission)
        node = ProcessLogic(
            logic.init, (logic.step,), logic.on_timer, None, None, (LATE, *side),
            uses=tuple(dict.fromkeys((EVENT_MS, *uses))), inner=aggregation.functions,
            counted=((LATE, LATE_COUNTER),),
            on_failed_timer=self._logic(NoResult(), emission).on_timer,
        )  # fmt: skip
        has_top = isinstance(self._windows, Hopping) and emission == Emission()
        return self._added(node, name, has_top)

    def _logic(self, aggregation: Aggregation, emission: Emission) -> WindowLogic:
        """Return the logic of the operator."""
        match self._windows:
            case Sliding() | Counts() if emission.every_ms is not None:
                raise SetupError(
                    f"operator {self._name!r}", "its windows end with records, and its results come"
                    " at an interval", "give it emit='closed' or 'each'",
                )  # fmt: skip
            case Sliding() if isinstance(aggregation, WindowProcess):
                raise SetupError(
                    f"operator {self._name!r}", "its windows slide, so one record is in many, and"
                    " functions of a process have one call per record", "use fold or reduce",
                )  # fmt: skip
            case Sliding() as sliding:
                return SlidingWindows(sliding, aggregation, emission)
            case Counts() as counts:
                return CountedWindows(counts, aggregation, emission)
            case windows:
                return TimedWindows(windows, aggregation, emission)


class WindowResults(ProcessedStream[K, WindowResult[K, V]], Generic[K, V]):
    """A stream that carries the results of windows. `side` gives their late records."""

    def __init__(
        self, flow: Definition, at: Output, side: Sequence[str] = (), has_top: bool = False
    ) -> None:
        super().__init__(flow, at, side)
        self._has_top = has_top

    def top(
        self, n: int, *, by: Callable[[WindowResult[K, V]], Any] | str | None = None
    ) -> KeyedStream[WindowTop, tuple[int, int]]:
        """Return the `n` greatest results over all keys of each window, once per window, the
        greatest first. Equal ones stand in the order of their encoded keys.

        `by` is a function of a result or the name of a field of its value; without it the value
        itself ranks. It adds two operators, named after that of the windows. Raises SetupError for
        windows that differ from key to key, or give results before they close.

        >>> from meander import Flow, KafkaSink, KafkaSource, columns, tumbling
        >>> flow = Flow("top")
        >>> views = flow.source(KafkaSource("views")).key_by(lambda view: view["page"])
        >>> counts = views.window("views", tumbling(60)).fold(columns.count())
        >>> counts.top(10).sink(KafkaSink("top-pages"))
        """
        name = self._at.node.name
        checked_whole(f"operator {name!r}", "top", n, 1, unit="results")
        if not (by is None or isinstance(by, str) or callable(by)):
            raise SetupError(f"operator {name!r}", f"its top is by {by!r}",
                             "give a function of a result or a field of its value")  # fmt: skip
        if not self._has_top:
            raise SetupError(
                f"operator {name!r}", "its windows have no top, as they differ from key to key, or"
                " give results before they close", "use tumbling or hopping, with emit='closed'",
            )  # fmt: skip
        top = Top(n, by)
        inner = (("by", by),) if callable(by) else ()
        options: KeyedOptions = "event", PLAIN, "dead_letter", True, None
        parts = self.key_by(part_of)
        first = ProcessLogic(list, (top.add,), None, top.give_part, None, (), inner=inner)
        at = parts._keyed(f"{name} top of parts", (parts,), first, options)
        whole = KeyedStream[Any, Any](self._flow, at).key_by(window_of)
        second = ProcessLogic(list, (top.add_part,), None, top.give, None, ())
        at = whole._keyed(f"{name} top", (whole,), second, options)
        return KeyedStream(self._flow, at)
