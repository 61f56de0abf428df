"""The joins of a stream: `join` reads the other side, and chooses the operator by its kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, overload

from meander.dataflow.api.extensible import Extensible
from meander.dataflow.operators.retries import OnError
from meander.schemas.errors import SetupError

if TYPE_CHECKING:
    from meander.dataflow.api.stream import KeyedStream
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

    def join(
        self,
        other: Table[Any, Any],
        *,
        on: Callable[[T], Any] | None = None,
        how: How = "inner",
        step: Callable[[T, Any], Any] | None = None,
        name: str = "join",
        copies: Copies = "one",
        on_error: OnError = "dead_letter",
        colocate: bool = True,
    ) -> KeyedStream[Any, Any]:
        """Join each record with the row that the table has at the logical time of the record: all
        changes up to this time are in, those of the same time included, and later ones are not.

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
        """
        from meander.dataflow.api.table import Table, join_table

        given: object = other
        if not isinstance(given, Table):
            raise SetupError(f"operator {name!r}", f"it is to join {given!r}",
                             "give it a table, such as flow.table(KafkaSource('customers'))"
                             )  # fmt: skip
        return join_table(self, given, on, how, step, name, copies, on_error, colocate)
