"""A pattern refuses edges and functions that it cannot work with, when the flow is defined."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from meander import (
    Collection,
    Flow,
    KafkaSink,
    KafkaSource,
    MeanderError,
    SetupError,
    flow_control,
    pattern,
)
from meander.dataflow.simulation.in_memory import ListSource
from meander.testing import TestFlow

TRIANGLE = pattern("a->b, b->c, a->c")


def edges_of(flow: Flow, kind: type = int) -> Collection:
    source = flow.source(ListSource([[]]))
    return source.collection(lambda row: row, key=kind, value=kind)


def test_edges_under_flow_control_are_refused() -> None:
    with (
        flow_control(edges_of(Flow("f"))) as inner,
        pytest.raises(SetupError, match="its edges are in a loop or under flow control"),
    ):
        TRIANGLE.matches(inner)


def test_edges_in_a_loop_are_refused() -> None:
    def body(inner: Collection) -> Collection:
        return TRIANGLE.matches(inner).collection(lambda a, b, c: (a, b))

    with pytest.raises(SetupError, match="its edges are in a loop or under flow control"):
        edges_of(Flow("f")).iterate("loop", body)


def test_edges_between_names_are_refused() -> None:
    with pytest.raises(SetupError, match="its edges have rows of str -> str"):
        TRIANGLE.matches(edges_of(Flow("f"), str))


def test_a_function_of_matches_takes_a_column_of_each_node() -> None:
    matches = TRIANGLE.matches(edges_of(Flow("f")))
    with pytest.raises(SetupError, match="gets 3 arguments.*the column of c"):
        matches.collection(lambda a, b: (a, b))


def test_an_operator_reads_arrangements_alone() -> None:
    edges = edges_of(Flow("f"))
    with pytest.raises(SetupError, match="no arrangement outside of loops"):
        edges.operator("reader", lambda services: pytest.fail("it is built"), arrangements=[edges])


def test_a_result_of_another_type_names_the_operator() -> None:
    flow = Flow("f")
    edges = flow.source(KafkaSource("edges")).collection(lambda edge: (*edge, 1))
    wrong: Any = lambda a, b, c: (a, np.zeros(1))  # noqa: E731
    found = TRIANGLE.matches(edges).collection(wrong, name="rows")
    found.changes().sink(KafkaSink("rows"))
    with TestFlow(flow) as run:
        run.feed("edges", [1, 2], [2, 3], [1, 3])
        with pytest.raises(MeanderError, match="operator 'rows'.*returned"):
            run.run()
