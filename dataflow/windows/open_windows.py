"""The open windows of a state as a checkpoint holds it.

Guarantees the windows that still hold records. This module alone, besides the logic that writes
these states, knows their form. Cost: one row per window.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from meander.dataflow.windows.aggregation import WindowColumns
from meander.dataflow.windows.columnar import OWN, ColumnarWindows
from meander.dataflow.windows.logic import CountedWindows, Row, TimedWindows
from meander.dataflow.windows.panes import pane_end
from meander.dataflow.windows.sliding import Entry, SlidingWindows
from meander.dataflow.windows.window import Hopping, Sessions

Logic = TimedWindows | CountedWindows | SlidingWindows | ColumnarWindows


class OpenWindow(NamedTuple):
    """A window that holds records of a key, with its state. A sliding window has no state of its
    own, and shows its records so far. Of hopping windows in panes it is a pane."""

    key: object
    """The key of its records."""
    start: int
    """The first time of the window, in milliseconds since 1970."""
    end: int
    """The first time behind it."""
    state: object


def open_windows(logic: Logic, key: Any, state: Any) -> Iterator[OpenWindow]:  # noqa: ANN401 (as stored)
    """Yield the open windows of an entry of an operator with this logic, a key and its state.

    >>> from meander.dataflow.windows.aggregation import WindowReduction
    >>> from meander.dataflow.windows.logic import Emission
    >>> minutes = TimedWindows(Hopping(60_000, 60_000), WindowReduction(max), Emission())
    >>> [*open_windows(minutes, "home", [(0, 60_000, 60_000, 7)])]
    [OpenWindow(key='home', start=0, end=60000, state=7)]
    """
    match logic:
        case TimedWindows():
            for row in map(Row._make, state):
                yield OpenWindow(key, *row.window, row.state)
        case CountedWindows():
            if state:
                start, end, _, value = state
                yield OpenWindow(key, start, end, value)
        case SlidingWindows(windows=windows):
            entries = [Entry._make(one) for one in state]
            for entry in entries:
                if entry.due == windows.close(entry.time):
                    window = windows.window(entry.time)
                    held = [one.records for one in entries if window.holds(one.time)]
                    yield OpenWindow(key, *window, _in_order(held))
        case ColumnarWindows(windows=Hopping() as windows):
            start, name = key
            end = pane_end(windows, start) if logic.in_panes else start + windows.size_ms
            yield OpenWindow(name, start, end, state)
        case ColumnarWindows():
            start, end, *columns = state
            fold = columns[OWN - 2 :]
            yield OpenWindow(key[1], start, end, fold[0] if len(fold) == 1 else tuple(fold))


def result_of(logic: Logic) -> Callable[[Any], object]:
    """Return the function from the state of an open window to its result so far."""
    match logic:
        case (
            TimedWindows(aggregation=WindowColumns() as aggregation)
            | CountedWindows(aggregation=WindowColumns() as aggregation)
        ):
            return aggregation.result
        case ColumnarWindows(windows=windows, fold=fold):
            layout, result = fold.layout, WindowColumns(fold).result
            alone = len(layout.init) == 1 and (layout.numbers or isinstance(windows, Sessions))
            return lambda state: result((state,) if alone else state)
    return lambda state: state


def _in_order(records: Sequence[Sequence[tuple[int, object]]]) -> list[object]:
    """Return the values of records, in their order."""
    return [value for _, value in sorted((one for some in records for one in some), key=_place)]


def _place(record: tuple[int, object]) -> int:
    return record[0]
