"""The joins of a stream: `join` reads the other side, and chooses the operator by its kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, cast, overload

from meander.dataflow.api.extensible import Extensible
from meander.dataflow.joins.interval import How as StreamHow
from meander.dataflow.operators.retries import OnError
from meander.schemas.errors import SetupError

if TYPE_CHECKING:
    from meander.dataflow.api.stream import KeyedStream, ProcessedStream
    from meander.dataflow.api.table import Table

T = TypeVar("T")
U = TypeVar("U")
K = TypeVar("K")
V = TypeVar("V")

How = Literal["inner", "left"]
"""What happens to a record without a row: "inner" drops it, "left" joins it with None."""
Copies = Literal["one", "everywhere"]
"""Where the rows of a table lie: "one" of each, with its key, or a copy in each bin."""


class Joinable(Extensible, Generic[T]):
    """A stream that joins with other streams and tables."""

    @overload
    def join(
        self,
        other: Table[K, V],
        *,
        on: Callable[[T], K] | None = None,
        how: Literal["inner"] = "inner",
        step: Callable[[T, V], U],
        name: str = "join",
        copies: Literal["one"] = "one",
        on_error: OnError = "dead_letter",
        colocate: bool = True,
    ) -> KeyedStream[U, K]: ...

    @overload
    def join(
        self,
        other: Table[K, V],
        *,
        on: Callable[[T], K] | None = None,
        how: Literal["left"],
        step: Callable[[T, V | None], U],
        name: str = "join",
        copies: Literal["one"] = "one",
        on_error: OnError = "dead_letter",
        colocate: bool = True,
    ) -> KeyedStream[U, K]: ...

    @overload
    def join(
        self,
        other: Table[K, V],
        *,
        on: Callable[[T], K] | None = None,
        how: Literal["inner"] = "inner",
        name: str = "join",
        copies: Literal["one"] = "one",
        on_error: OnError = "dead_letter",
        colocate: bool = True,
    ) -> KeyedStream[tuple[T, V], K]: ...

    @overload
    def join(
        self,
        other: Table[K, V],
        *,
        on: Callable[[T], K] | None = None,
        how: Literal["left"],
        name: str = "join",
        copies: Literal["one"] = "one",
        on_error: OnError = "dead_letter",
        colocate: bool = True,
    ) -> KeyedStream[tuple[T, V | None], K]: ...

    @overload
    def join(
        self,
        other: Table[K, V],
        *,
        on: Callable[[T], K],
        how: How = "inner",
        step: Callable[[T, Any], U] = ...,
        name: str = "join",
        copies: Literal["everywhere"],
        on_error: OnError = "dead_letter",
        colocate: bool = True,
    ) -> KeyedStream[U, Any]: ...

    @overload
    def join(
        self,
        other: KeyedStream[V, K],
        *,
        within: tuple[float, float],
        late: float = 0,
        how: Literal["inner"] = "inner",
        step: Callable[[T, V], U],
        name: str = "join",
        on_error: OnError = "dead_letter",
        colocate: bool = True,
    ) -> ProcessedStream[K, U]: ...

    @overload
    def join(
        self,
        other: KeyedStream[V, K],
        *,
        within: tuple[float, float],
        late: float = 0,
        how: StreamHow = "inner",
        step: Callable[[Any, Any], U],
        name: str = "join",
        on_error: OnError = "dead_letter",
        colocate: bool = True,
    ) -> ProcessedStream[K, U]: ...

    @overload
    def join(
        self,
        other: KeyedStream[V, K],
        *,
        within: tuple[float, float],
        late: float = 0,
        how: StreamHow = "inner",
        name: str = "join",
        on_error: OnError = "dead_letter",
        colocate: bool = True,
    ) -> ProcessedStream[K, tuple[T, V]]: ...

    def join(
        self,
        other: Table[Any, Any] | KeyedStream[Any, Any],
        *,
        within: tuple[float, float] | None = None,
        late: float = 0,
        on: Callable[[T], Any] | None = None,
        how: StreamHow = "inner",
        step: Callable[[T, Any], Any] | None = None,
        name: str = "join",
        copies: Copies = "one",
        on_error: OnError = "dead_letter",
        colocate: bool = True,
    ) -> KeyedStream[Any, Any]:
        """Join a stream with a table, or two streams by the own times of their records.

        A record joins the row that a table has at the logical time of the record: all changes up to
        this time are in, those of the same time included, and later ones are not.

        The row has the key of the record, or that of `on(record)`: then the result has this key.
        `step` gives the result from record and row, which is their pair without it. With
        `how="left"` a record without a row meets None, and with "inner" it gives no result.

        With `copies="everywhere"` each bin has a copy of the table. The records stay where they
        are, and keep their keys. Only a small table is worth it.

        >>> from meander import Flow, KafkaSink, KafkaSource
        >>> from meander.testing import TestFlow
        >>> flow = Flow("orders")
        >>> customers = flow.table(KafkaSource("customers"), "customers")
        >>> orders = flow.source(KafkaSource("orders"))
        >>> def priced(order, customer):
        ...     return {"id": order["id"], "city": customer and customer["city"]}
        >>> joined = orders.join(customers, on=lambda order: order["of"], how="left", step=priced)
        >>> joined.sink(KafkaSink("priced"))
        >>> with TestFlow(flow) as run:
        ...     run.feed("customers", {"city": "Bern"}, key="Ada", ms=20)
        ...     run.feed("customers", {"city": "Rome"}, key="Ada", ms=30)
        ...     run.feed("orders", {"id": 1, "of": "Ada"}, ms=10)
        ...     run.feed("orders", {"id": 2, "of": "Ada"}, ms=20)
        ...     run.feed("orders", {"id": 3, "of": "Ada"}, ms=40)
        ...     run.run()
        >>> [order["city"] for order in run.values("priced")]
        [None, 'Bern', 'Rome']

        A record of a keyed stream pairs with the records of another that have the same key, and
        own times `within[0]` to `within[1]` seconds behind its own, both included. `how="left"`
        gives `step(left, None)` for a record with which nothing has paired once its time is over,
        and "outer" also `step(None, right)`.

        A record pairs with nothing if its logical time is `late` seconds behind its own, or more:
        it goes to `.side("late")`.

        >>> from meander import field
        >>> flow = Flow("ads")
        >>> shown = flow.source(KafkaSource("shown", time=field("at")), "shown")
        >>> clicks = flow.source(KafkaSource("clicks", time=field("at")), "clicks")
        >>> shown, clicks = (one.key_by(lambda record: record["ad"]) for one in (shown, clicks))
        >>> pairs = shown.join(clicks, within=(0, 600), step=lambda s, c: (s["at"], c["at"]))
        >>> pairs.sink(KafkaSink("pairs"))
        >>> with TestFlow(flow) as run:
        ...     run.feed("shown", {"ad": 7, "at": 1000})
        ...     run.feed("clicks", *({"ad": 7, "at": at} for at in (999, 1000, 601_000, 601_001)))
        ...     run.run()
        >>> run.values("pairs")
        [[1000, 1000], [1000, 601000]]
        """
        from meander.dataflow.api.interval_join import join_streams
        from meander.dataflow.api.table import Table, join_table

        given: object = other
        if not isinstance(given, Table):
            _expect_no_options(name, "streams", (on, None), (copies, "one"))
            return join_streams(self, given, within, late, how, step, name, on_error, colocate)
        _expect_no_options(name, "a stream with a table", (within, None), (late, 0))
        return join_table(self, given, on, cast(How, how), step, name, copies, on_error, colocate)


def _expect_no_options(name: str, joined: str, *options: tuple[object, object]) -> None:
    """Raise SetupError for options of another join, each given with its default."""
    if any(given != default for given, default in options):
        raise SetupError(
            f"operator {name!r}", f"it joins {joined}, and has an option of another join",
            "give `within` and `late` for two streams, `on` and `copies` for a table",
        )  # fmt: skip
