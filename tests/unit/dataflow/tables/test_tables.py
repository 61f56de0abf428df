"""A table is the newest row of each key; what it refuses, and what its readers keep."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from meander import (
    Checkpointing,
    Flow,
    KafkaSink,
    KafkaSource,
    SetupError,
    Table,
    field,
    nondeterministic,
)
from meander.dataflow.api.plan import Plan
from meander.dataflow.simulation.in_memory import ListSource
from meander.state.encoding import codec
from meander.state.times.time import to_millis
from meander.testing import TestFlow


def value_of(record: Any) -> Any:
    return record[1]


def customers_and_orders(flow: Flow, **options: Any) -> tuple[Table[Any, Any], Any]:
    customers = flow.table(KafkaSource("customers"), "customers", **options)
    orders = flow.source(KafkaSource("orders", pairs=True), "orders")
    return customers, orders.key_by(lambda order: order[0]).map(value_of)


def test_a_record_with_metadata_is_the_row_of_its_key() -> None:
    flow = Flow("records")
    table = flow.table(KafkaSource("customers", metadata=True))
    flow.source(KafkaSource("orders")).join(
        table, on=lambda order: order, step=lambda _, row: [row.value, row.offset]
    ).sink(KafkaSink("results"))
    with TestFlow(flow) as run:
        run.feed("customers", "Bern", "Rome", key="Ada", ms=10)
        run.feed("orders", "Ada", ms=20)
        run.feed("customers", None, key="Ada", ms=30)
        run.feed("orders", "Ada", ms=40)
        run.run()
    assert run.values("results") == [["Rome", 1]]


def test_a_null_deletes_a_row_at_its_timestamp_where_a_field_has_the_time() -> None:
    flow = Flow("nulls")
    table = flow.table(KafkaSource("homes", time=field("at")))
    table.changes().sink(KafkaSink("results"))
    with TestFlow(flow) as run:
        run.feed("homes", {"at": 10}, key="Ada", ms=1)
        run.feed("homes", None, key="Ada", ms=30)
        run.run()
    assert [to_millis(one.time) for one in run.results("results")] == [10, 30]


def test_a_source_without_kafka_gives_pairs() -> None:
    flow = Flow("pairs")
    table = flow.table(ListSource([[(10, ("Ada", "Bern")), (20, ("Ada", None))]]))
    table.changes().sink(KafkaSink("results"))
    with TestFlow(flow) as run:
        run.run()
    assert [change["after"] for change in run.values("results")] == ["Bern", None]  # type: ignore[index]


@pytest.mark.parametrize("value", ["Ada", (None, "Bern"), ("Ada", "Bern", 1)])
def test_a_record_without_a_key_is_a_dead_letter(value: object) -> None:
    flow = Flow("pairs")
    flow.table(ListSource([[(10, value)]]), "homes").changes().sink(KafkaSink("results"))
    with TestFlow(flow) as run:
        run.run()
        assert [letter.operator for letter in run.dead_letters] == ["homes key"]
    assert run.values("results") == []


def test_a_join_keeps_rows_by_key_and_forgets_deleted_ones() -> None:
    flow = Flow("states")
    customers, orders = customers_and_orders(flow)
    orders.join(customers).sink(KafkaSink("results"))
    with TestFlow(flow, states={"join": {"Eve": {"city": "Oslo"}}}) as run:
        run.feed("customers", {"city": "Bern"}, key="Ada", ms=10)
        run.feed("customers", {"city": "Rome"}, None, key="Bob", ms=10)
        run.feed("orders", 1, key="Eve", ms=20)
        run.run()
        assert run.states("join") == {"Ada": {"city": "Bern"}, "Eve": {"city": "Oslo"}}
    assert run.values("results") == [[1, {"city": "Oslo"}]]


def test_each_bin_has_a_copy_that_moves_with_it() -> None:
    flow = Flow("copies", bins=2)
    customers, orders = customers_and_orders(flow)
    joined = orders.join(customers, on=lambda order: order["of"], copies="everywhere")
    joined.sink(KafkaSink("results"))
    move = {"type": "migrate", "id": "m", "bins": [0, 1, 2, 3], "worker": 1}
    with TestFlow(flow, 2) as run:
        run.feed("customers", "Bern", key="Ada", ms=10)
        run.run_until_idle()
        run.control(move)
        run.run_until_idle()
        for n in range(20):
            run.feed("orders", {"of": "Ada"}, key=str(n), ms=5000)
        run.run()
        assert run.states("join") == dict.fromkeys([(bin, "Ada") for bin in range(4)], "Bern")
        results = run.results("results")
        assert {one.key for one in results} == {b"%d" % n for n in range(20)}
        assert {one.worker for one in results} == {1}


def test_a_row_that_is_read_is_not_written_again() -> None:
    """So a checkpoint of a join costs what its table changes, not what its stream looks up."""
    flow = Flow("reads")
    customers, orders = customers_and_orders(flow)
    orders.join(customers).sink(KafkaSink("results"))
    with TestFlow(flow, 1) as run:
        run.feed("customers", "Bern", key="Ada", ms=10)
        run.run_until_idle()
        (keyed,) = (one.keyed for one in run.workers[0].parts.operators.outgoing)
        store = keyed.store
        (bin,) = store.bins()
        store.collect_states(bin, [codec.encode_key("Ada")])
        store._changes.pop_new(bin)
        run.feed("orders", 1, key="Ada", ms=20)
        run.feed("orders", 1, key="Bob", ms=20)
        run.run()
        assert run.values("results") == [[1, "Bern"]]
        assert not store.changed_bins()


def test_a_step_that_fails_on_a_joined_row_leaves_the_row_of_before() -> None:
    def inverse(left: int, right: int) -> float:
        return left / right

    flow = Flow("failing")
    left, right = (flow.table(KafkaSource(name), name) for name in ("left", "right"))
    left.join(right, step=inverse).sink(KafkaSink("results"))
    with TestFlow(flow) as run:
        run.feed("left", 6, key="a", ms=10)
        for ms, value in (10, 2), (20, 0), (30, 3):
            run.feed("right", value, key="a", ms=ms)
        run.run()
        assert [letter.operator for letter in run.dead_letters] == ["join step"]
    assert run.values("results") == [3.0, 2.0]


def test_a_failing_step_or_key_is_a_dead_letter_of_its_record() -> None:
    flow = Flow("failing", bins=1)
    customers, orders = customers_and_orders(flow)
    orders.join(
        customers, on=lambda order: order["of"], step=lambda order, row: order["n"] / row,
        copies="everywhere", name="a",
    ).sink(KafkaSink("results"))  # fmt: skip
    with TestFlow(flow) as run:
        run.feed("customers", 2, key="Ada", ms=10)
        run.feed("customers", 0, key="Bob", ms=10)
        for n, of in enumerate(["Ada", "Bob", "Ada", None]):
            run.feed("orders", {"n": n} | ({"of": of} if of else {}), key="k", ms=20 + n)
        run.run()
        failed = sorted((letter.value for letter in run.dead_letters), key=repr)
        assert failed == [{"n": 1, "of": "Bob"}, {"n": 3}]
    assert run.values("results") == [0.0, 1.0]


def test_a_left_row_that_its_foreign_key_has_no_room_for_is_a_dead_letter() -> None:
    flow = Flow("full", bins=1)
    customers = flow.table(KafkaSource("customers"), "customers")
    orders = flow.table(KafkaSource("orders"), "orders")
    cities = orders.join(customers, on=lambda order: order[0], step=lambda _, city: city)
    cities.sink(KafkaSink("results"))
    with TestFlow(flow) as run:
        run.feed("customers", "Bern", key="Ada", ms=10)
        for n in range(3):
            run.feed("orders", ["Ada", "x" * (3 << 20)], key=str(n), ms=20 + n)
        run.feed("customers", "Rome", key="Ada", ms=30)
        run.run()
        (letter,) = run.dead_letters
        assert letter.operator == "join pairs"
        assert "only with entries of up to 8,388," in str(letter.reason)
    rows = [(one.key, one.value) for one in run.results("results")]
    assert rows == [(b"0", "Bern"), (b"1", "Bern"), (b"0", "Rome"), (b"1", "Rome")]


def test_two_joins_read_one_table() -> None:
    flow = Flow("two")
    customers, orders = customers_and_orders(flow)
    orders.join(customers, name="first").join(customers, name="second").sink(KafkaSink("results"))
    with TestFlow(flow) as run:
        run.feed("customers", "Bern", key="Ada", ms=10)
        run.feed("orders", 1, key="Ada", ms=10)
        run.run()
    assert run.values("results") == [[[1, "Bern"], "Bern"]]


@dataclass(frozen=True)
class City:
    name: str


def city(name: str) -> City:
    return City(name)


def test_the_functions_of_a_table_name_the_classes_of_its_rows() -> None:
    flow = Flow("cities")
    homes = flow.table(KafkaSource("homes", value="str"), "homes").map(city)
    flow.source(KafkaSource("people", value="str")).join(
        homes, on=str, step=lambda _, row: row.name
    ).sink(KafkaSink("results"))
    with TestFlow(flow) as run:
        run.feed("homes", "Bern", key="Ada", ms=10)
        run.feed("people", "Ada", ms=20)
        run.run()
        assert run.states("join") == {"Ada": City("Bern")}
    assert run.values("results") == ["Bern"]


@pytest.mark.parametrize("build", [
    lambda table, drawn: table.map(drawn),
    lambda table, drawn: table.filter(drawn),
    lambda table, drawn: table.join(table.map(str, name="other"), step=drawn),
    lambda table, drawn: table.join(table.map(str, name="other"), on=drawn),
])  # fmt: skip
def test_a_nondeterministic_function_of_rows_counts_as_one(
    build: Callable[[Table[Any, Any], Any], Table[Any, Any]],
) -> None:
    """I5: so that exactly once its results wait for a checkpoint."""

    @nondeterministic
    def drawn(*rows: Any) -> Any:
        return rows[0]

    flow = Flow("drawn", delivery="exactly_once", checkpoints=Checkpointing(interval=1))
    build(flow.table(KafkaSource("homes"), "homes"), drawn).sink(KafkaSink("results"))
    assert Plan(flow).outboxes == {"sink"}


REFUSED: dict[str, tuple[Callable[[Table[Any, Any], Any], object], str]] = {
    "another side": (lambda table, orders: orders.join([table]), "no table|flow.table"),
    "another how": (lambda table, orders: orders.join(table, how="outer"), "its how is 'outer'"),
    "another copies": (
        lambda table, orders: orders.join(table, copies="some"), "its copies is 'some'",
    ),
    "copies without on": (
        lambda table, orders: orders.join(table, copies="everywhere"), "it has no on",
    ),
    "a table with a stream": (lambda table, orders: table.join(orders), "give it a table"),
    "one name twice": (
        lambda table, orders: (orders.join(table), orders.join(table)), "another operator 'join'",
    ),
    "an on that is no function": (
        lambda table, orders: orders.join(table, on="customer"), "its function is 'customer'",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_a_join_that_cannot_work_is_refused_with_the_remedy(case: str) -> None:
    build, message = REFUSED[case]
    with pytest.raises(SetupError, match=message):
        build(*customers_and_orders(Flow("refused")))


def test_a_stream_without_keys_needs_on() -> None:
    flow = Flow("keyless")
    table, orders = flow.table(KafkaSource("customers")), flow.source(KafkaSource("orders"))
    with pytest.raises(SetupError, match="give it on="):
        orders.join(table)
    with pytest.raises(SetupError, match="call key_by before"):
        orders.join(table, on=len, copies="everywhere")


def test_rows_of_copies_are_not_bootstrapped() -> None:
    flow = Flow("copies", bins=1)
    customers, orders = customers_and_orders(flow)
    orders.join(customers, on=str, copies="everywhere").sink(KafkaSink("results"))
    with pytest.raises(SetupError, match="copy of the table"):
        TestFlow(flow, states={"join": {"Ada": "Bern"}})


def test_rows_with_a_ttl_end_also_after_a_bootstrap() -> None:
    flow = Flow("ttl")
    customers, orders = customers_and_orders(flow, ttl=1)
    orders.join(customers, how="left").sink(KafkaSink("results"))
    with TestFlow(flow, states={"join": {"Ada": "Bern"}}) as run:
        now = run.sim.clock.now_ms()
        for ms in (999, 1000):
            run.feed("orders", ms, key="Ada", ms=now + ms)
        run.run()
    assert run.values("results") == [[999, "Bern"], [1000, None]]
