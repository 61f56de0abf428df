"""The windows of a keyed stream: `fold`, `reduce` and `process` say what each window gives.

Each of them adds one stateful operator with a process function (`windows/logic.py`), so windows
move, recover and deliver as any state does. A method raises SetupError for windows that cannot
work.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Generic, Literal, get_args

from typing_extensions import TypeVar

from meander.dataflow.api.nodes import ProcessLogic
from meander.dataflow.api.stream import KeyedOptions, KeyedStream, ProcessedStream
from meander.dataflow.operators.retries import OnError
from meander.dataflow.records.extra_columns import EVENT_MS
from meander.dataflow.windows.aggregation import (
    Aggregation,
    NoResult,
    WindowContext,
    WindowFold,
    WindowProcess,
    WindowReduction,
    WindowResult,
)
from meander.dataflow.windows.logic import (
    LATE,
    CountedWindows,
    Emission,
    TimedWindows,
    WindowLogic,
)
from meander.dataflow.windows.sliding import SlidingWindows
from meander.dataflow.windows.window import Counts, Sliding, Windows
from meander.schemas.errors import SetupError
from meander.state.encoding.codec import PLAIN

T = TypeVar("T")
S = TypeVar("S")
K = TypeVar("K", default=Any)

Emit = Literal["closed", "each"] | float
"""When a window gives results: as it closes, with each record, or at an interval in seconds."""
COUNTER: Final = "window_late"
"""Counts the records that are late for all their windows."""


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

    def fold(
        self,
        init: Callable[[], S],
        step: Callable[[S, T], S],
        *,
        merge: Callable[[S, S], S] | None = None,
        emit: Emit = "closed",
    ) -> ProcessedStream[K, WindowResult[K, S]]:
        """Fold the records of each window, in the total order: `(state, value) -> state`. The
        result of a window is its state.

        Sessions need `merge`, from the states of an earlier and a later session to one state. With
        `emit="each"` each record gives the result so far, and the close gives none. With a number
        of seconds a window that has changed gives its result so far at each multiple of them in
        logical time, and the last one as it closes.

        `.side("late")` of the result carries the records that are late for all their windows.
        """
        fold = WindowFold(init, step, merge)
        return self._with(fold, merge is not None, Emission.of(self._name, emit))

    def reduce(
        self, function: Callable[[T, T], T], *, emit: Emit = "closed"
    ) -> ProcessedStream[K, WindowResult[K, T]]:
        """Reduce the values of each window to one by an associative function of two. The options
        and side outputs are those of `fold`.

        >>> from meander import Flow, KafkaSink, KafkaSource, session
        >>> from meander.testing import TestFlow
        >>> flow = Flow("visits")
        >>> costs = flow.source(KafkaSource("costs", pairs=True)).key_by(lambda cost: cost[0])
        >>> sums = costs.map(lambda cost: cost[1]).window("sum", session(30))
        >>> sums.reduce(lambda a, b: a + b).sink(KafkaSink("sums"))
        """
        return self._with(WindowReduction(function), True, Emission.of(self._name, emit))

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
        return self._with(functions, merge is not None, Emission(), side)

    def _with(
        self,
        aggregation: Aggregation,
        has_merge: bool,
        emission: Emission,
        side: Sequence[str] = (),
    ) -> ProcessedStream[K, Any]:
        """Add the operator."""
        if self._windows.merges and not has_merge:
            raise SetupError(
                f"operator {self._name!r}", "a record may merge its sessions, and it cannot merge"
                " their states", "give it merge=, from two states to one",
            )  # fmt: skip
        if isinstance(side, str) or len({*side, LATE}) <= len(side):
            raise SetupError(f"operator {self._name!r}", f"its side outputs are {side!r}",
                             f"name each once, in a list, and none {LATE!r}")  # fmt: skip
        logic = self._logic(aggregation, emission)
        node = ProcessLogic(
            logic.init, (logic.step,), logic.on_timer, None, None, (LATE, *side), uses=(EVENT_MS,),
            inner=aggregation.functions, counted=((LATE, COUNTER),),
            on_failed_timer=self._logic(NoResult(), emission).on_timer,
        )  # fmt: skip
        options: KeyedOptions = "event", PLAIN, self._on_error, self._colocate, None
        at = self._stream._keyed(self._name, (self._stream,), node, options)
        return ProcessedStream(self._stream._flow, at, node.side)

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
