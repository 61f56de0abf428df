"""A collection that could not be kept up to date is refused when the flow is defined."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from meander import Checkpointing, Collection, Flow, nondeterministic
from meander.dataflow.api.nodes import ConsolidateNode
from meander.dataflow.api.plan import Plan
from meander.dataflow.simulation.in_memory import ListSink, ListSource
from meander.schemas.errors import SetupError


def defined(flow: Flow) -> Collection:
    return flow.source(ListSource([[]])).collection(tuple)


@nondeterministic
def varying(*columns: Any) -> Any:
    return columns


def same(*columns: Any) -> Any:
    return columns[:2]


class Pairs:
    """A function over columns with an argument beside them."""

    def __call__(self, keys: Any, values: Any, shift: int = 0) -> Any:
        return keys + shift, values


def leaked(rows: Collection, loop: str) -> Collection:
    """Return a collection of a loop that has ended."""
    found = list[Collection]()

    def body(inner: Collection) -> Collection:
        found.append(inner)
        return inner

    rows.iterate(loop, body)
    return found[0]


def join_of_two_loops(rows: Collection) -> Plan:
    flow = rows._flow
    assert isinstance(flow, Flow)
    leaked(rows, "a").join("join", leaked(rows, "b"), same)
    return Plan(flow)


def of_another_flow() -> Collection:
    return defined(Flow("g"))


@pytest.mark.parametrize(
    ("says", "define"),
    [
        ("operator 'map': its function is None; give it a function", lambda c: c.map(None)),
        ("operator 'filter': its function is 7; give it", lambda c: c.filter(7)),
        ("operator 'flat_map': its function is 'x'; give it", lambda c: c.flat_map("x")),
        ("operator 'j': its function is None; give it", lambda c: c.join("j", c, None)),
        ("operator 'r': its function is 0; give it", lambda c: c.reduce("r", 0)),
        ("operator 't': its most is 0; give it 1 or more", lambda c: c.top("t", 0)),
        ("operator 'j': it gets 7; give it a collection, such", lambda c: c.join("j", 7, same)),
        ("operator 'concat': it gets None; give it a collection", lambda c: c.concat(None)),
        (
            "operator 'j': it reads 'collection exchange' of another flow; connect operators of",
            lambda c: c.join("j", of_another_flow(), same),
        ),
        (
            "operator 'concat': it reads 'collection' of another flow; connect operators of one",
            lambda c: c.concat(of_another_flow()),
        ),
        ("loop 'l': its max_iterations is 0", lambda c: c.iterate("l", same, max_iterations=0)),
        ("loop 'l': it gets None; give it a collection", lambda c: c.iterate("l", lambda _: None)),
        (
            "loop 'l': its body did not return a collection of the loop; return a collection that",
            lambda c: c.iterate("l", lambda _: c),
        ),
        (
            "operator 'changes': it lies in scope 'loop', and records of a stream carry changes of",
            lambda c: leaked(c, "loop").count("n").changes(),
        ),
        ("an edge from scope 'b' to 'a': they do not touch", join_of_two_loops),
        (
            "operator 'changes': it lies in scope 'l', and records of a stream carry changes of",
            lambda c: c.iterate("l", lambda d: d.changes()),
        ),
        (
            "operator 'map': its function is declared nondeterministic, so a removal might not",
            lambda c: c.map(varying),
        ),
        (
            "operator 'j': its keys are int, and str on the other side; map one side, so that both",
            lambda c: c.join("j", c.map(same, key=str), same),
        ),
        (
            "operator 'concat': it has rows of int -> int, and of int -> str; map one collection,",
            lambda c: c.concat(c.map(same, value=str)),
        ),
        (
            "loop 'l': it has rows of int -> int, and of str -> int; map one collection, so that",
            lambda c: c.iterate("l", lambda d: d.map(same, key=str)),
        ),
        ("collection: its key is 'str', no type; name a", lambda c: c.map(same, key="str")),
        ("operator 'map': its function takes (row), and gets 2", lambda c: c.map(lambda row: row)),
        (
            "operator 'filter': its function takes (k, v, d), and gets 2 arguments; give it a",
            lambda c: c.filter(lambda k, v, d: k),
        ),
        (
            "operator 'j': its function takes (k, v), and gets 3 arguments; give it a function of",
            lambda c: c.join("j", c, lambda k, v: (k, v)),
        ),
        (
            "operator 'r': its function takes (g), and gets 2 arguments; give it a function of a",
            lambda c: c.reduce("r", lambda g: g),
        ),
        ("operator 'j': its function is declared", lambda c: c.join("j", c, varying)),
        ("operator 'r': its function is declared", lambda c: c.reduce("r", varying)),
    ],
)
def test_a_collection_that_could_not_work_is_not_defined(
    says: str, define: Callable[[Any], object]
) -> None:
    with pytest.raises(SetupError) as refused:
        define(defined(Flow("f")))
    assert str(refused.value).startswith(says)


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("sink", ".changes().sink(...)"),
        ("key_by", ".changes().key_by(...)"),
        ("split", ".changes().split(...)"),
        ("fold", ".changes().key_by(...).fold(...)"),
        ("process", ".changes().key_by(...).process(...)"),
    ],
)
def test_a_method_of_streams_is_refused_with_the_way_to_it(name: str, remedy: str) -> None:
    with pytest.raises(SetupError) as refused:
        getattr(defined(Flow("f")), name)
    assert str(refused.value) == (
        f"operator 'collection': {name} needs a stream, and this is a collection;"
        f" call changes() first, as in {remedy}."
    )


def test_a_type_checker_refuses_a_method_of_streams_too() -> None:
    with pytest.raises(SetupError, match="sink needs a stream"):
        defined(Flow("f")).sink(ListSink())  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match=r"^sinks$"):
        defined(Flow("f")).sinks  # type: ignore[attr-defined] # noqa: B018


@pytest.mark.parametrize("function", [np.add, max, same, Pairs()])
def test_a_function_whose_signature_admits_columns_is_taken(function: Any) -> None:
    defined(Flow("f")).map(function)


@pytest.mark.parametrize(
    ("says", "define"),
    [
        ("operator 'collection': its function is None; give", lambda s: s.collection(None)),
        (
            "operator 'c': its on_error is 'drop'; give 'dead_letter', 'skip', 'fail' or a",
            lambda s: s.collection(tuple, "c", on_error="drop"),
        ),
        (
            "operator 'collection': it lies in scope 'l', and records of a stream carry changes",
            lambda s: s.iterate("l", lambda inner: (inner, inner.collection(tuple))),
        ),
    ],
)
def test_a_stream_that_could_not_become_a_collection_is_refused(
    says: str, define: Callable[[Any], object]
) -> None:
    with pytest.raises(SetupError) as refused:
        define(Flow("f").source(ListSource([[]])))
    assert str(refused.value).startswith(says)


@pytest.mark.parametrize(
    ("define", "consolidations"),
    [
        (lambda rows: rows.count("c"), 0),
        (lambda rows: rows.distinct("d"), 0),
        (lambda rows: rows.consolidate(), 1),
        (lambda rows: rows.count("c").map(same), 1),
        (lambda rows: rows.join("j", rows, same), 1),
        (lambda rows: rows.iterate("l", lambda inner: inner.distinct("d")), 1),
    ],
)
def test_changes_are_consolidated_where_a_row_may_come_twice_at_a_time(
    define: Callable[[Collection], Collection], consolidations: int
) -> None:
    flow = Flow("f")
    define(defined(flow)).changes().sink(ListSink())
    found = [one for one in Plan(flow).nodes if isinstance(one, ConsolidateNode)]
    assert len(found) == consolidations


def test_changes_behind_a_function_that_varies_wait_for_a_checkpoint() -> None:
    checkpoints = Checkpointing(interval=1)
    flow = Flow("f", delivery="exactly_once", checkpoints=checkpoints)
    rows = flow.source(ListSource([[]])).collection(varying)
    rows.distinct("d").changes().sink(ListSink())
    plan = Plan(flow)
    assert plan.outboxes == {"sink"}
    assert plan.functions_before == {"sink": ["collection", "d"]}
