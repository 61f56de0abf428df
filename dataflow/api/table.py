"""The tables of a flow: the newest row of each key, which streams and tables join with.

A table is a value: two uses of it fork it. It is a stream of changes, each with a key and its new
row, or None that deletes the row. An operator that needs rows keeps them under its own name, so a
table without a reader keeps nothing. A method raises SetupError for an operator that cannot run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, Literal, cast, get_args, overload

from typing_extensions import TypeVar

from meander.dataflow.api.joined import Copies, How, Joinable
from meander.dataflow.api.nodes import IngestNode, Logic, Output, ProcessLogic, TableJoinLogic
from meander.dataflow.api.stream import KeyedOptions, KeyedStream, Stream
from meander.dataflow.interfaces import SinkSpec
from meander.dataflow.operators.collection.row_type import RowType
from meander.dataflow.operators.collection.table import TableChanges, no_collection_row
from meander.dataflow.operators.keyed.context import OnTimer, OnValue
from meander.dataflow.operators.keyed.expiry import Expiry
from meander.dataflow.operators.retries import OnError, fallback
from meander.dataflow.tables import changes, foreign_keys, row_expiry, row_join
from meander.dataflow.tables.changes import TableChange
from meander.dataflow.tables.copies import COPIES, first_of, keys_of_bins, to_each
from meander.dataflow.tables.logic import pair
from meander.dataflow.tables.row_functions import (
    Change,
    ForeignKey,
    PairFunction,
    RowFilter,
    RowFunction,
)
from meander.schemas.errors import SetupError
from meander.schemas.option_values import checked_choice
from meander.state.encoding.codec import PLAIN
from meander.state.encoding.record import Record

if TYPE_CHECKING:
    from meander.dataflow.api.collection import Collection

K = TypeVar("K", default=Any)
V = TypeVar("V", default=Any)
J = TypeVar("J")
U = TypeVar("U")
W = TypeVar("W")


class Table(Generic[K, V]):
    """A table that holds the newest row of each key, as of a logical time."""

    def __init__(
        self,
        stream: KeyedStream[Change, K],
        name: str,
        expiry: Expiry | None = None,
        *,
        changes_once: bool = False,
    ) -> None:
        """`stream` has the changes of rows by their key. With `changes_once` it has at most one of
        a key and time."""
        self._stream, self._name, self._expiry = stream, name, expiry
        self._changes_once = changes_once

    def map(
        self, function: Callable[[V], U], *, on_error: OnError = "dead_letter", name: str = "map"
    ) -> Table[K, U]:
        """Apply a function to each row. A row for which it returns None is deleted."""
        return self._mapped(RowFunction(function), name, on_error)

    def filter(
        self,
        function: Callable[[V], object],
        *,
        on_error: OnError = "dead_letter",
        name: str = "filter",
    ) -> Table[K, V]:
        """Keep the rows for which a function returns a true value. A row that becomes another one
        is deleted."""
        return self._mapped(RowFilter(function), name, on_error)

    @overload
    def join(
        self,
        other: Table[J, W],
        *,
        on: Callable[[V], J] | None = None,
        how: Literal["inner"] = "inner",
        step: Callable[[V, W], U],
        name: str = "join",
        on_error: OnError = "dead_letter",
        colocate: bool = True,
    ) -> Table[K, U]: ...

    @overload
    def join(
        self,
        other: Table[J, W],
        *,
        on: Callable[[V], J] | None = None,
        how: Literal["left"],
        step: Callable[[V, W | None], U],
        name: str = "join",
        on_error: OnError = "dead_letter",
        colocate: bool = True,
    ) -> Table[K, U]: ...

    @overload
    def join(
        self,
        other: Table[J, W],
        *,
        on: Callable[[V], J] | None = None,
        how: Literal["inner"] = "inner",
        name: str = "join",
        on_error: OnError = "dead_letter",
        colocate: bool = True,
    ) -> Table[K, tuple[V, W]]: ...

    @overload
    def join(
        self,
        other: Table[J, W],
        *,
        on: Callable[[V], J] | None = None,
        how: Literal["left"],
        name: str = "join",
        on_error: OnError = "dead_letter",
        colocate: bool = True,
    ) -> Table[K, tuple[V, W | None]]: ...

    def join(
        self,
        other: Table[Any, Any],
        *,
        on: Callable[[V], Any] | None = None,
        how: How = "inner",
        step: Callable[[V, Any], Any] | None = None,
        name: str = "join",
        on_error: OnError = "dead_letter",
        colocate: bool = True,
    ) -> Table[K, Any]:
        """Join each row with the row of another table that has its key, or the foreign key
        `on(row)`. The result is a table by the key of this one: a change of either side updates or
        deletes its rows, at most once per key and time.

        `step` gives the row from those of both sides, which is their pair without it. With
        `how="left"` a row without another one meets None.

        The rows of one foreign key are one state, so as many have room as fit a state.

        >>> from meander import Flow, KafkaSink, KafkaSource
        >>> from meander.testing import TestFlow
        >>> flow = Flow("orders")
        >>> customers = flow.table(KafkaSource("customers"), "customers")
        >>> orders = flow.table(KafkaSource("orders"), "orders")
        >>> cities = orders.join(customers, on=lambda order: order["of"], step=lambda _, city: city)
        >>> cities.sink(KafkaSink("cities"))
        >>> with TestFlow(flow) as run:
        ...     run.feed("orders", {"of": "Ada"}, key="1", ms=10)
        ...     run.feed("customers", "Bern", key="Ada", ms=20)
        ...     run.feed("customers", "Rome", key="Ada", ms=30)
        ...     run.feed("orders", None, key="1", ms=40)
        ...     run.run()
        >>> for result in run.results("cities"):
        ...     print(result.key.decode(), result.value)
        1 Bern
        1 Rome
        1 None
        """
        checked_choice(f"operator {name!r}", "how", how, get_args(How))
        if not isinstance(other, Table):
            raise SetupError(f"operator {name!r}", f"a table is to join {other!r}",
                             "give it a table, such as flow.table(KafkaSource('customers'))"
                             )  # fmt: skip
        options: KeyedOptions = "event", PLAIN, on_error, colocate, None
        left, right = self._ending(), other._ending()
        if on is None:
            functions = row_join.RowJoin(how == "left")
            steps = functions.left, functions.right
            joined = _process(name, (left, right), row_join.no_rows, steps,
                              functions.on_notify, options)  # fmt: skip
        else:
            joined = _joined_by_foreign_key(left, right, on, how, name, options)
        table = Table[Any, Any](joined, name, changes_once=True)
        return (
            table if step is None else table._mapped(PairFunction(step), f"{name} step", on_error)
        )

    def changes(
        self, name: str = "changes", *, on_error: OnError = "dead_letter", colocate: bool = True
    ) -> KeyedStream[TableChange[K, V], K]:
        """Return the changes of the rows: key, row before and row after, at most one of a key and
        time. The operator keeps the rows.

        >>> from meander import Flow, KafkaSink, KafkaSource
        >>> from meander.testing import TestFlow
        >>> flow = Flow("moves")
        >>> flow.table(KafkaSource("homes")).changes().sink(KafkaSink("moves"))
        >>> with TestFlow(flow) as run:
        ...     run.feed("homes", "Bern", "Rome", key="Ada", ms=10)
        ...     run.feed("homes", None, key="Ada", ms=20)
        ...     run.run()
        >>> for change in run.values("moves"):
        ...     print(change)
        {'key': 'Ada', 'before': None, 'after': 'Rome'}
        {'key': 'Ada', 'before': 'Rome', 'after': None}
        """
        options: KeyedOptions = "event", PLAIN, on_error, colocate, None
        steps = (changes.replaced,)
        return _process(name, (self._ending(),), changes.no_row, steps, changes.told, options)

    def sink(
        self, spec: SinkSpec, name: str = "sink", *, on_error: OnError = "dead_letter"
    ) -> None:
        """Write each change of a row outside the flow, with the key of the row. A deleted row is a
        null: a tombstone on a compacted topic."""
        if self._changes_once:
            rows = self._stream.map(_row_of, name=f"{name} row")
        else:
            rows = self.changes(f"{name} changes").map(_row_after, name=f"{name} row")
        rows.sink(spec, name, on_error=on_error)

    def collection(
        self,
        name: str = "collection",
        *,
        key: type = int,
        value: type = int,
        on_error: OnError = "dead_letter",
    ) -> Collection:
        """Return the collection of the rows, which are pairs of a key and a value of these types. A
        row that is replaced or deleted leaves it.

        >>> from meander import Flow, KafkaSink, KafkaSource
        >>> flow = Flow("cities")
        >>> homes = flow.table(KafkaSource("homes", value="str"))
        >>> by_city = homes.map(lambda city: (city, 1)).collection(key=str)
        >>> by_city.count("people").changes().sink(KafkaSink("cities"))
        """
        from meander.dataflow.api.collection import Collection

        row_type = RowType(key, value)
        options: KeyedOptions = "event", PLAIN, on_error, True, None
        steps = (TableChanges(row_type).step,)
        read = _process(name, (self._ending(),), no_collection_row, steps, None, options)
        flow = self._stream._flow
        node = IngestNode(
            flow.name_for(f"{name} changes"), read._at, _as_it_is, fallback(on_error), row_type
        )
        return Collection(flow, Output.of(flow.add(node)))

    def _mapped(self, function: RowFunction, name: str, on_error: OnError) -> Table[K, Any]:
        stream = self._stream.map(function, on_error=on_error, name=name)
        return Table(stream, self._name, self._expiry, changes_once=self._changes_once)

    def _ending(self) -> KeyedStream[Change, K]:
        """Return the changes of the table, with those that end rows."""
        if self._expiry is None:
            return self._stream
        functions = row_expiry.RowExpiry(self._expiry)
        options: KeyedOptions = "event", PLAIN, "dead_letter", True, None
        name = self._stream._flow.name_for(f"{self._name} expiry")
        steps, on_timer = (functions.step,), functions.on_timer
        return _process(
            name, (self._stream,), row_expiry.no_row, steps, None, options, on_timer=on_timer
        )


def _row_of(change: Change) -> object:
    return change[-1]


def _row_after(change: TableChange) -> object:
    return change["after"]


def _as_it_is(update: tuple[Any, Any, int]) -> tuple[Any, Any, int]:
    return update


def _process(
    name: str, inputs: Sequence[KeyedStream[Any, Any]], init: Callable[[], object],
    steps: Sequence[Callable[..., object]], on_notify: Callable[..., object] | None,
    options: KeyedOptions, *, on_timer: Callable[..., object] | None = None,
) -> KeyedStream[Any, Any]:  # fmt: skip
    """Add an operator whose functions are those of this package."""
    back = cast("OnTimer | None", on_timer), cast("OnTimer | None", on_notify)
    logic: Logic = ProcessLogic(init, cast(tuple[OnValue, ...], (*steps,)), *back, None, ())
    return KeyedStream(inputs[0]._flow, inputs[0]._keyed(name, inputs, logic, options))


def _joined_by_foreign_key(
    left: KeyedStream[Any, Any], right: KeyedStream[Any, Any], on: Callable[[Any], Any], how: How,
    name: str, options: KeyedOptions,
) -> KeyedStream[Any, Any]:  # fmt: skip
    """Add the three stages of a join by foreign key."""
    on_error = fallback(options[2])
    directed = left.map(ForeignKey(on), on_error=options[2], name=f"{name} on")
    sent = _process(f"{name} left", (directed,), foreign_keys.no_left_row,
                    (foreign_keys.left_changed,), foreign_keys.send_left, options)  # fmt: skip
    there = sent.key_by(first_of, on_error=on_error, name=f"{name} foreign key")
    functions = foreign_keys.ForeignKeyJoin(how == "left")
    steps = functions.left, functions.right
    pairs = _process(f"{name} pairs", (there, right), foreign_keys.no_pairs, steps,
                     functions.on_notify, options)  # fmt: skip
    back = pairs.key_by(first_of, on_error=on_error, name=f"{name} key")
    return _process(name, (back,), foreign_keys.no_pair, (foreign_keys.pair_changed,),
                    foreign_keys.send_pair, options)  # fmt: skip


def table_of(
    stream: Stream[Any], name: str, on_error: OnError, expiry: Expiry | None
) -> Table[Any, Any]:
    """Return the table of a stream of changes."""
    keyed = stream.key_by(_checked_key, on_error=on_error, name=f"{name} key")
    return Table(keyed, name, expiry)


def _checked_key(change: object) -> object:
    """Return the key of a change. Raise ValueError where it has none."""
    if not isinstance(change, tuple | list) or len(change) != 2:
        raise ValueError(f"its value is {change!r:.60}, no pair of a key and a row")
    if change[0] is None:
        raise ValueError("it has no key, and a row of a table has one")
    return change[0]


def change_of(value: object) -> object:
    """Return the change that a record of a source makes: the pair that it is, or for a `Record` its
    key with the whole record as the row."""
    if isinstance(value, Record):
        return value.key, None if value.value is None else value
    return value


def join_table(
    stream: Joinable[Any], table: Table[Any, Any], on: Callable[[Any], Any] | None, how: How,
    step: Callable[[Any, Any], Any] | None, name: str, copies: Copies, on_error: OnError,
    colocate: bool,
) -> KeyedStream[Any, Any]:  # fmt: skip
    """Add the join of a stream with a table."""
    checked_choice(f"operator {name!r}", "how", how, get_args(How))
    checked_choice(f"operator {name!r}", "copies", copies, get_args(Copies))
    assert isinstance(stream, Stream)
    function, keeps_unmatched = step or pair, how == "left"
    if copies == "one":
        keyed = stream if on is None else stream.key_by(on, on_error=on_error, name=f"{name} key")
        logic = TableJoinLogic(function, keeps_unmatched)
        changed = table._stream
        remedy = "give it on=, a function of the record that returns the key of its row"
    else:
        if on is None:
            raise SetupError(f"operator {name!r}", "each bin has a copy of its table, and it has no"
                             " on", "give it on=, a function of the record that returns the key of"
                             " its row")  # fmt: skip
        keyed, logic = stream, TableJoinLogic(function, keeps_unmatched, on)
        changed = _copied(table, name)
        remedy = "call key_by before, as the bins of its records have the copies"
    if not isinstance(keyed, KeyedStream):
        raise SetupError(f"operator {name!r}", "it joins records without keys", remedy)
    codec = PLAIN if copies == "one" else COPIES
    options: KeyedOptions = "event", codec, on_error, colocate, table._expiry
    return KeyedStream(stream._flow, keyed._keyed(name, (changed, keyed), logic, options))


def _copied(table: Table[Any, Any], name: str) -> KeyedStream[Any]:
    """Return the changes of a table, each once for each bin."""
    keys = keys_of_bins(table._stream._flow.space)
    copied = table._stream.flat_map(to_each(keys), name=f"{name} copies")
    return copied.key_by(first_of, name=f"{name} bins")
