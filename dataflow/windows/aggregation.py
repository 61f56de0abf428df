"""The aggregation of a window: what a user's functions make of its records, and what it gives.

Guarantees that each window has a state of its own. Cost: one call per record and window.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypedDict, cast

import numpy as np
from typing_extensions import TypeVar

from meander.dataflow.operators.keyed.column_fold import ColumnFold, ValueReader
from meander.dataflow.operators.keyed.context import Context
from meander.dataflow.windows.folding import Folding, states_of
from meander.dataflow.windows.window import Window

K = TypeVar("K", default=Any)
V = TypeVar("V", default=Any)


class WindowResult(TypedDict, Generic[K, V]):
    """A result of a window."""

    key: K
    start: int
    """The first time of the window, in milliseconds since 1970."""
    end: int
    """The first time behind it."""
    value: V


class WindowContext(Generic[K]):
    """A context that gives a function of a window the key, the window, times and outputs.

    >>> from meander import Flow, KafkaSink, KafkaSource, WindowContext, tumbling
    >>> from meander.testing import TestFlow
    >>> def seen(context: WindowContext[str], pages: list[str], view: tuple[str, str]) -> list[str]:
    ...     return sorted({*pages, view[1]})
    >>> def closed(context: WindowContext[str], pages: list[str]) -> None:
    ...     context.emit((context.key, context.window.start, pages))
    >>> flow = Flow("pages")
    >>> views = flow.source(KafkaSource("views", pairs=True)).key_by(lambda view: view[0])
    >>> views.window("seen", tumbling(60)).process(list, seen, closed).sink(KafkaSink("pages"))
    """

    __slots__ = "_context", "_window"

    def __init__(self, context: Context, window: Window) -> None:
        self._context, self._window = context, window

    @property
    def window(self) -> Window:
        """Return the window as it is now: a session or a count may still grow."""
        return self._window

    @property
    def key(self) -> K:
        """Return the key of the window."""
        return cast(K, self._context.key)

    @property
    def time_ms(self) -> int:
        """Return the logical time of the record or of the close, in milliseconds since 1970. That
        of a close is the last one at which records of the window are in time."""
        return self._context.time_ms

    @property
    def event_ms(self) -> int:
        """Return the own time of the record or of the close, in milliseconds since 1970. That of a
        close is the last one of the window."""
        return self._context.event_ms

    def emit(self, result: object, to: str | None = None) -> None:
        """Send a result with these times, to the first output or to a side output by name."""
        self._context.emit(result, to)


class Aggregation(Protocol):
    """An aggregation of the records of one window."""

    @property
    def functions(self) -> tuple[tuple[str, object], ...]:
        """Return the user's functions, each with its role."""

    def first(self, context: Context, window: Window, value: Any) -> object:  # noqa: ANN401
        """Return the state of a window that holds one record."""

    def add(self, context: Context, window: Window, state: Any, value: Any) -> object:  # noqa: ANN401
        """Return the state with one more record."""

    def merge(self, earlier: Any, later: Any) -> object:  # noqa: ANN401
        """Return the state of two windows as one."""

    def give(self, context: Context, window: Window, state: object) -> None:
        """Send the result of a window."""


class _Merging:
    """An aggregation whose user may give a function that merges states."""

    merge_function: Callable[[Any, Any], object] | None

    def merge(self, earlier: Any, later: Any) -> object:  # noqa: ANN401
        """Return the state of two windows as one."""
        assert self.merge_function is not None, "sessions have a function that merges states"
        return self.merge_function(earlier, later)

    @property
    def _merges(self) -> tuple[tuple[str, object], ...]:
        return () if self.merge_function is None else (("merge", self.merge_function),)


class _Results:
    """An aggregation whose result is the state of the window."""

    def give(self, context: Context, window: Window, state: object) -> None:
        """Send the result of a window."""
        result: WindowResult = {
            "key": context.key, "start": window.start, "end": window.end, "value": state,
        }  # fmt: skip
        context.emit(result)


class NoResult:
    """An aggregation that calls no function of a user: a close that has failed happens with it."""

    functions: tuple[tuple[str, object], ...] = ()

    def first(self, context: Context, window: Window, value: object) -> object:
        """Return no state."""

    def add(self, context: Context, window: Window, state: object, value: object) -> object:
        """Return no state."""

    def merge(self, earlier: object, later: object) -> object:
        """Return no state."""

    def give(self, context: Context, window: Window, state: object) -> None:
        """Send nothing."""


@dataclass(frozen=True)
class WindowFold(_Merging, _Results):
    """A fold of the records of a window: `(state, value) -> state`."""

    init: Callable[[], Any]
    step: Callable[[Any, Any], object]
    merge_function: Callable[[Any, Any], object] | None

    @property
    def functions(self) -> tuple[tuple[str, object], ...]:
        """Return the user's functions, each with its role."""
        return ("init", self.init), ("step", self.step), *self._merges

    def first(self, context: Context, window: Window, value: Any) -> object:  # noqa: ANN401
        """Return the state of a window that holds one record."""
        return self.step(self.init(), value)

    def add(self, context: Context, window: Window, state: Any, value: Any) -> object:  # noqa: ANN401
        """Return the state with one more record."""
        return self.step(state, value)


class WindowColumns:
    """A columnar fold of the records of a window, record by record. The state of a window is that
    of the fold, one value per column."""

    def __init__(self, fold: ColumnFold) -> None:
        self._fold, self._folding, self._reader = fold, Folding(fold), ValueReader(fold)

    @property
    def functions(self) -> tuple[tuple[str, object], ...]:
        """Return the user's functions, each with its role."""
        return self._fold.functions

    def first(self, context: Context, window: Window, value: Any) -> object:  # noqa: ANN401
        """Return the state of a window that holds one record."""
        return self.add(context, window, self._fold.init, value)

    def add(self, context: Context, window: Window, state: Any, value: Any) -> object:  # noqa: ANN401
        """Return the state with one more record."""
        column = self._reader.column([value])
        used = [np.array([context._used(name)]) for name in self._fold.uses]
        columns = self._folding.of([state])
        self._folding.step(columns, np.zeros(1, np.int64), column, used)
        return states_of(columns)[0]

    def merge(self, earlier: Any, later: Any) -> object:  # noqa: ANN401
        """Return the state of two windows as one."""
        merged = self._folding.merge(self._folding.of([earlier]), self._folding.of([later]))
        return states_of(merged)[0]

    def give(self, context: Context, window: Window, state: Any) -> None:  # noqa: ANN401
        """Send the result of a window."""
        value = self.result(state)
        result: WindowResult = {
            "key": context.key, "start": window.start, "end": window.end, "value": value,
        }  # fmt: skip
        context.emit(result)

    def result(self, state: Any) -> object:  # noqa: ANN401
        """Return the result of a window in a state."""
        (value,) = self._folding.results(self._folding.of([state]))
        return value


@dataclass(frozen=True)
class WindowReduction(_Results):
    """A reduction of the values of a window by a function of two values."""

    function: Callable[[Any, Any], object]

    @property
    def functions(self) -> tuple[tuple[str, object], ...]:
        """Return the user's functions, each with its role."""
        return (("function", self.function),)

    def first(self, context: Context, window: Window, value: Any) -> object:  # noqa: ANN401
        """Return the value of the first record."""
        return value

    def add(self, context: Context, window: Window, state: Any, value: Any) -> object:  # noqa: ANN401
        """Return the value with one more record."""
        return self.function(state, value)

    def merge(self, earlier: Any, later: Any) -> object:  # noqa: ANN401
        """Return the value of two windows as one."""
        return self.function(earlier, later)


OnRecord = Callable[[WindowContext, Any, Any], object]
"""`(context, state, value) -> state`."""
OnClose = Callable[[WindowContext, Any], object]
"""`(context, state) -> None`."""


@dataclass(frozen=True)
class WindowProcess(_Merging):
    """A process function of a window: functions of its records and of its close."""

    init: Callable[[], Any]
    step: OnRecord
    on_close: OnClose
    merge_function: Callable[[Any, Any], object] | None

    @property
    def functions(self) -> tuple[tuple[str, object], ...]:
        """Return the user's functions, each with its role."""
        own = ("init", self.init), ("step", self.step), ("on_close", self.on_close)
        return *own, *self._merges

    def first(self, context: Context, window: Window, value: Any) -> object:  # noqa: ANN401
        """Return the state of a window that holds one record."""
        return self.step(WindowContext(context, window), self.init(), value)

    def add(self, context: Context, window: Window, state: Any, value: Any) -> object:  # noqa: ANN401
        """Return the state with one more record."""
        return self.step(WindowContext(context, window), state, value)

    def give(self, context: Context, window: Window, state: object) -> None:
        """Call the function of the close."""
        self.on_close(WindowContext(context, window), state)
