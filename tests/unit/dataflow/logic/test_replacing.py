"""An operator takes only versions with the functions that it needs, and that its pending calls, its
states and its delivery allow; the error names the operator, the cause and the remedy."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from meander import ChangeableLogic, Checkpointing, Flow, KeyedStream, Stream, nondeterministic
from meander.dataflow.api.logics import changeable_logics, expect_replaces
from meander.dataflow.api.nodes import KeyedNode, StepsNode
from meander.dataflow.api.plan import Plan
from meander.dataflow.operators.stateless import Step
from meander.dataflow.simulation.faults import FaultInjector
from meander.dataflow.simulation.in_memory import ListSink, ListSource
from meander.schemas.errors import SetupError
from meander.state.encoding import codec


class Nothing(ChangeableLogic, frozen=True):
    pass


class Above(ChangeableLogic, frozen=True):
    limit: float = 2.0

    def __call__(self, value: Any) -> object:
        return value > self.limit


class Below(ChangeableLogic, frozen=True):
    def __call__(self, value: Any) -> object:
        return value < 0


class Drawn(Above, frozen=True):
    @nondeterministic
    def __call__(self, value: Any) -> object:
        return value > self.limit


class Whole(Above, frozen=True):
    """A logic that is declared as a whole."""


class WithInit(ChangeableLogic, frozen=True):
    def init(self) -> object:
        return 0


class Total(WithInit, frozen=True):
    def step(self, state: Any, value: Any) -> tuple[object, object]:
        return state + value, state + value


class Upgraded(Total, frozen=True):
    def upgrade(self, state: Any, before: ChangeableLogic) -> object:
        return -state


class DrawnTotal(Total, frozen=True):
    @nondeterministic
    def step(self, state: Any, value: Any) -> tuple[object, object]:
        return super().step(state, value)


class Asks(WithInit, frozen=True):
    def step(self, context: Any, state: Any, value: Any) -> object:
        return state


class Rings(Asks, frozen=True):
    def on_timer(self, context: Any, state: Any) -> object:
        return state


class Rung(Asks, frozen=True):
    def on_alarm(self, context: Any, state: Any) -> object:
        return state


class Tells(Asks, frozen=True):
    def on_notify(self, context: Any, state: Any) -> object:
        return state


class DrawnTells(Asks, frozen=True):
    @nondeterministic
    def on_notify(self, context: Any, state: Any) -> object:
        return state


class Own:
    name = "own"

    def encode(self, state: object) -> bytes:
        return codec.encode(state)

    def decode(self, data: bytes) -> object:
        return codec.decode(data)


def source() -> Stream[Any]:
    return Flow("f").source(ListSource([[]]))


def node_of(stream: Stream[Any]) -> KeyedNode | Step:
    """Return the last operator of a stream, or the last step of its chain."""
    node = stream._at.node
    if isinstance(node, StepsNode):
        return node.steps[-1]
    assert isinstance(node, KeyedNode)
    return node


def keyed(stream: Stream[Any]) -> KeyedStream[Any]:
    return stream.key_by(lambda value: value)


Define = Callable[[Any], Any]
STEPS: dict[str, Define] = {
    "map": lambda stream: stream.map(Nothing()),
    "filter": lambda stream: stream.filter(Nothing()),
    "flat_map": lambda stream: stream.flat_map(Nothing()),
    "inspect": lambda stream: stream.inspect(Nothing()),
    "key_by": lambda stream: stream.key_by(Nothing()),
}
MISSING: dict[str, tuple[Define, str, str]] = {
    **{name: (define, name, "Nothing has no __call__") for name, define in STEPS.items()},
    "fold, init": (lambda s: keyed(s).fold("n", Nothing()), "n", "Nothing has no init"),
    "fold, step": (lambda s: keyed(s).fold("n", WithInit()), "n", "WithInit has no step"),
    "process, init": (lambda s: keyed(s).process("n", Nothing()), "n", "Nothing has no init"),
    "process, step": (lambda s: keyed(s).process("n", WithInit()), "n", "WithInit has no step"),
}


@pytest.mark.parametrize("name", MISSING)
def test_the_definition_of_an_operator_names_a_missing_function(name: str) -> None:
    define, operator, cause = MISSING[name]
    function = cause.rpartition(" ")[2]
    said = f"operator {operator!r}: its logic {cause}; give the class a method {function}."
    with pytest.raises(SetupError, match=re.escape(said)):
        define(source())


def test_a_logic_stands_alone_as_a_process_function() -> None:
    with pytest.raises(SetupError, match="operator 'n': its logic has all functions, and it gets"):
        keyed(source()).process("n", Rings(), on_timer=lambda context, state: state)  # type: ignore[call-overload]


def test_a_logic_stands_alone_as_a_fold() -> None:
    with pytest.raises(SetupError, match="operator 'n': a fold needs an init and a step, or"):
        keyed(source()).fold("n", Total(), lambda state, value: (state, value))  # type: ignore[call-overload]


def test_the_changeable_logics_of_a_flow_stand_by_the_names_of_operators_and_steps() -> None:
    stream = source()
    behind = keyed(stream.filter(Above(), name="above").map(lambda value: value).map(Above()))
    behind.fold("total", Total()).fold("other", int, lambda state, value: (state, value))
    behind.process("asks", Asks())
    assert changeable_logics(stream._flow.nodes) == {
        "above": Above(),
        "map-2": Above(),
        "total": Total(),
        "asks": Asks(),
    }


def fold(**options: Any) -> KeyedNode | Step:
    return node_of(keyed(source()).fold("n", Total(), **options))


def process(logic: ChangeableLogic) -> KeyedNode | Step:
    return node_of(keyed(source()).process("n", logic))


def step() -> KeyedNode | Step:
    return node_of(source().map(Above(), name="n"))


TAKEN: dict[str, tuple[KeyedNode | Step, ChangeableLogic, ChangeableLogic]] = {
    "other parameters": (step(), Above(), Above(limit=5)),
    "another class": (step(), Above(), Below()),
    "an upgrade": (fold(), Total(), Upgraded()),
    "a fold on arrival without an upgrade": (fold(order="processing"), Total(), Total()),
    "a fold with a codec without an upgrade": (fold(codec=Own()), Total(), Total()),
    "a new call": (process(Asks()), Asks(), Rings()),
    "the same calls": (process(Rings()), Rings(), Rings()),
    "a nondeterministic one for another": (step(), Drawn(), Drawn(limit=3)),
    "a deterministic one": (step(), Drawn(), Above()),
}


@pytest.mark.parametrize("name", TAKEN)
def test_an_operator_takes_a_version_that_fits(name: str) -> None:
    expect_replaces(*TAKEN[name])


PENDING = "and calls may be pending"
ARRIVAL = "it applies records in the order of arrival"
DRAWN = "is declared nondeterministic, and results of the version before it do not wait"
REFUSED: dict[str, tuple[KeyedNode | Step, ChangeableLogic, ChangeableLogic, str, str]] = {
    "a step without __call__": (
        step(), Above(), Total(), "its logic Total has no __call__", "give the class a method",
    ),
    "a fold without a step": (
        fold(), Total(), WithInit(), "its logic WithInit has no step", "give the class a method",
    ),
    "a process function without an init": (
        process(Asks()), Asks(), Above(), "its logic Above has no init", "give the class a method",
    ),
    "a dropped timer": (
        process(Rings()), Rings(), Asks(), f"Asks has no on_timer, {PENDING}", "keep on_timer",
    ),
    "a dropped alarm": (
        process(Rung()), Rung(), Asks(), f"Asks has no on_alarm, {PENDING}", "keep on_alarm",
    ),
    "an added alarm": (
        process(Asks()), Asks(), Rung(), "Rung has on_alarm, which the wall clock calls, and",
        "change it by a restart",
    ),
    "a dropped notification": (
        process(Tells()), Tells(), Rings(), f"Rings has no on_notify, {PENDING}", "keep on_notify",
    ),
    "an upgrade on arrival": (
        fold(order="processing"), Total(), Upgraded(), ARRIVAL, "leave out `upgrade`",
    ),
    "an upgrade of states with a codec": (
        fold(codec=Own()), Total(), Upgraded(), "its states have the codec 'own', and only plain",
        "leave out `upgrade`",
    ),
    "a nondeterministic step": (
        step(), Above(), Drawn(), f"Drawn {DRAWN}", "change it by a restart",
    ),
    "a nondeterministic fold": (
        fold(), Total(), DrawnTotal(), f"DrawnTotal {DRAWN}", "change it by a restart",
    ),
    "a nondeterministic call": (
        process(Asks()), Asks(), DrawnTells(), f"DrawnTells {DRAWN}", "change it by a restart",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_an_operator_refuses_a_version_that_does_not_fit(name: str) -> None:
    node, before, logic, cause, remedy = REFUSED[name]
    with pytest.raises(SetupError) as refused:
        expect_replaces(node, before, logic)
    error = str(refused.value)
    assert error.startswith(f"operator 'n': {cause}")
    assert f"; {remedy}" in error


def test_a_process_function_in_a_loop_gets_no_timers_by_a_change() -> None:
    """A timer has a time of the flow, without the iteration."""
    found = list[KeyedNode | Step]()

    def body(stream: Any) -> Any:
        asked = stream.key_by(lambda value: value).process("n", Asks())
        found.append(node_of(asked))
        return asked, asked.filter(lambda value: value < 0)

    source().iterate("loop", body)
    (node,) = found
    expect_replaces(node, Asks(), Tells())
    with pytest.raises(SetupError, match="operator 'n': it sets timers in scope 'loop'"):
        expect_replaces(node, Asks(), Rings())


@pytest.mark.parametrize("declared", [Drawn(), nondeterministic(Whole)()], ids=["call", "class"])
def test_results_behind_a_nondeterministic_logic_wait_for_checkpoints(declared: Any) -> None:
    """Also where a test has wrapped the logic."""
    flow = Flow("f", delivery="exactly_once", checkpoints=Checkpointing(interval=1.0))
    flow.source(ListSource([[]])).map(declared).sink(ListSink(), name="results")
    assert [*Plan(flow).outboxes] == ["results"]
    assert [*Plan(FaultInjector().instrument(flow)).outboxes] == ["results"]
