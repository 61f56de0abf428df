"""The kinds of stateful operators: the columns of their views, and the rows of their entries.

Guarantees that a row is what the users of an operator know: a key, a window, a record that waits,
or a row of a table. Any other operator shows the state of a key as it is. Cost: O(rows).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, get_args

from meander.connectors.spark.column_types import INT, TEXT, TIME, ColumnType
from meander.dataflow.api.flow import Flow
from meander.dataflow.api.nodes import KeyedNode, ProcessLogic, upstreams
from meander.dataflow.joins.interval import IntervalJoin
from meander.dataflow.joins.kept_records import kept_in, key_of_kept
from meander.dataflow.tables import changes, foreign_keys
from meander.dataflow.tables.foreign_keys import ForeignKeyJoin
from meander.dataflow.tables.row_expiry import RowExpiry
from meander.dataflow.tables.row_join import RowJoin
from meander.dataflow.windows.columnar import ColumnarWindows
from meander.dataflow.windows.open_windows import Logic, open_windows, result_of
from meander.dataflow.windows.top import Top
from meander.state.encoding import codec
from meander.state.encoding.timers import ROW

Values = tuple[object, ...]
"""The values of a row."""
Rows = Callable[[bytes, Any, Any], Iterator[Values]]
"""Yields the rows of an entry, given its key in the store, the key of its records and its state."""
SIDES: Final = "left", "right"
"""The sides of a join by name."""


def _key_of_state(entry: bytes) -> bytes | None:
    return None if entry.startswith(ROW) else entry


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of operators."""

    columns: Mapping[str, ColumnType | None]
    """The columns of its views; None stands for the type of a sample."""
    rows: Rows
    key_of: Callable[[bytes], bytes | None] = _key_of_state
    """Returns the encoded key of the records of an entry; None where the entry has no rows."""


def kind_of(node: KeyedNode | None) -> Kind:
    """Return the kind of an operator; that of plain states where it is unknown.

    >>> from meander import Flow, KafkaSource, tumbling
    >>> views = Flow("views").source(KafkaSource("views")).key_by(len)
    >>> minutes = views.window("minutes", tumbling(60)).fold(int, lambda count, _: count + 1)
    >>> [*kind_of(minutes._at.node).columns]
    ['key', 'start', 'end', 'value']
    """
    match None if node is None else node.logic:
        case IntervalJoin():
            return Kind(_WAITING, _waiting_rows, key_of_kept)
        case ColumnarWindows() as windows:
            return _kind_of_windows(windows)
        case ProcessLogic(init=init, on_values=(first, *_)):
            owner = getattr(init, "__self__", None)
            if isinstance(owner, get_args(Logic)):
                return _kind_of_windows(owner)
            return _kind_of_functions(getattr(first, "__self__", first))
    return Kind(_PLAIN, _plain_rows)


def _kind_of_functions(functions: object) -> Kind:
    """Return the kind of a process function by the object that has its functions, or by the first
    of them."""
    match functions:
        case Top():
            return Kind(_WINDOWS, _top_rows)
        case RowJoin() as join:
            return Kind(_PAIRS, partial(_pair_rows, join))
        case ForeignKeyJoin() as foreign:
            return Kind(_FOREIGN, partial(_foreign_rows, foreign))
        case RowExpiry():
            return Kind({"key": None, "end": INT}, _end_rows)
        case changes.replaced:
            return Kind(_PLAIN, _changed_rows)
    return Kind(_PLAIN, _plain_rows)


def stored_by(node: KeyedNode) -> KeyedNode:
    """Return the operator that keeps the rows of the view of another one: the second stage of a
    join by a foreign key, else the operator itself."""
    match node.logic:
        case ProcessLogic(on_values=(foreign_keys.pair_changed,)):
            return _before(node)
    return node


def inner_operators(flow: Flow) -> set[str]:
    """Return the operators without a view of their own: the first two stages of joins by foreign
    keys."""
    stored = [(node, stored_by(node)) for node in flow.nodes if isinstance(node, KeyedNode)]
    return {
        name
        for node, other in stored
        if other is not node
        for name in (other.name, _before(other).name)
    }


def _before(node: KeyedNode) -> KeyedNode:
    """Return the stateful operator before the first input of another one."""
    before = upstreams(node)[0].node
    while not isinstance(before, KeyedNode):
        before = upstreams(before)[0].node
    return before


_PLAIN: Final[Mapping[str, ColumnType | None]] = {"key": None, "value": None}
_WINDOWS: Final = {"key": None, "start": INT, "end": INT, "value": None}
_WAITING: Final = {"key": None, "side": TEXT, "time": TIME, "value": None}
_PAIRS: Final[Mapping[str, ColumnType | None]] = {"key": None, "left": None, "right": None}
_FOREIGN: Final[Mapping[str, ColumnType | None]] = {
    "key": None, "foreign_key": None, "left": None, "right": None
}  # fmt: skip


def _plain_rows(_: bytes, key: object, state: object) -> Iterator[Values]:
    yield key, state


def _kind_of_windows(logic: Logic) -> Kind:
    result = result_of(logic)

    def rows(_: bytes, key: object, state: object) -> Iterator[Values]:
        for one in open_windows(logic, key, state):
            yield one.key, one.start, one.end, result(one.state)

    return Kind(_WINDOWS, rows)


def _top_rows(_: bytes, __: object, entries: Any) -> Iterator[Values]:  # noqa: ANN401 (as stored)
    for _, result in entries:
        yield result["key"], result["start"], result["end"], result["value"]


def _waiting_rows(entry: bytes, key: object, state: object) -> Iterator[Values]:
    for side, own_ms, value in kept_in(entry, state):
        time = datetime.fromtimestamp(own_ms / 1000, UTC)
        yield key, SIDES[side], time, codec.decode(value)


def _pair_rows(join: RowJoin, _: bytes, key: object, state: Any) -> Iterator[Values]:  # noqa: ANN401 (as stored)
    if (sides := join.row(state)) is not None:
        yield key, *sides


def _foreign_rows(
    join: ForeignKeyJoin, _: bytes, foreign: object, state: Any  # noqa: ANN401 (as stored)
) -> Iterator[Values]:  # fmt: skip
    for key, left, right in join.rows(state):
        yield key, foreign, left, right


def _end_rows(_: bytes, key: object, state: Any) -> Iterator[Values]:  # noqa: ANN401 (as stored)
    due, timer = state
    if timer:
        yield key, due


def _changed_rows(_: bytes, key: object, state: Any) -> Iterator[Values]:  # noqa: ANN401 (as stored)
    if (row := state[0]) is not None:
        yield key, row
