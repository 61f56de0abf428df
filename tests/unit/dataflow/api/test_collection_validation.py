"""A collection that could not be kept up to date is refused when the flow is defined."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from meander import Checkpointing, Collection, Flow, nondeterministic
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
            "operator 'changes': it lies in loop 'loop', and records of a stream carry changes of",
            lambda c: leaked(c, "loop").count("n").changes(),
        ),
        ("an edge from scope 'b' to 'a': they do not touch", join_of_two_loops),
        (
            "operator 'changes': it lies in loop 'l', and records of a stream carry changes of",
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
    ("says", "define"),
    [
        ("operator 'collection': its function is None; give", lambda s: s.collection(None)),
        (
            "operator 'c': its on_error is 'drop'; give 'dead_letter', 'skip' or 'fail'",
            lambda s: s.collection(tuple, "c", on_error="drop"),
        ),
        (
            "operator 'collection': it lies in loop 'l', and records of a stream carry changes",
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


def test_changes_behind_a_function_that_varies_wait_for_a_checkpoint() -> None:
    checkpoints = Checkpointing(interval=1)
    flow = Flow("f", delivery="exactly_once", checkpoints=checkpoints)
    rows = flow.source(ListSource([[]])).collection(varying)
    rows.distinct("d").changes().sink(ListSink())
    plan = Plan(flow)
    assert plan.outboxes == {"sink"}
    assert plan.functions_before == {"sink": ["collection", "d"]}
