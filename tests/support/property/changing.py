"""Logic that changes while random flows run, and the versions that the reference applies.

The engine decides the times of the changes; they are taken as given, like the times of records.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from meander.dataflow.control.command import SwitchLogic
from meander.dataflow.control.logic_change import LogicChange, LogicUpdate, LogicVersion
from meander.dataflow.logic.changeable import ChangeableLogic, load
from meander.dataflow.operators.keyed.logic import unmarked
from meander.state.encoding import codec
from meander.state.times.time import from_millis
from tests.support.property import shapes

HOME = __name__


class Onward(ChangeableLogic, frozen=True):
    """A map."""

    factor: int = 5

    def __call__(self, value: Any) -> object:
        return {"k": value["k"], "v": (self.factor * value["v"] + 1) % 97}


class Backward(ChangeableLogic, frozen=True):
    """Another class for the same operator."""

    by: int = 1

    def __call__(self, value: Any) -> object:
        return {"k": value["k"], "v": (97 - value["v"] - self.by) % 97}


class Total(ChangeableLogic, frozen=True):
    """A fold whose states are pairs."""

    factor: int = 31

    def init(self) -> object:
        return (0, 0)

    def step(self, state: Any, value: Any) -> tuple[object, object]:
        n, sum = state[0] + 1, (state[1] * self.factor + value["v"]) % 1_000_003
        return (n, sum), {"k": value["k"], "n": n, "v": sum}

    def upgrade(self, state: Any, before: ChangeableLogic) -> object:
        assert isinstance(before, Named) and before.factor > 0
        return (state["n"], state["sum"] + before.factor)


class Named(ChangeableLogic, frozen=True):
    """The same fold whose states are dicts, and count their upgrades."""

    factor: int = 7

    def init(self) -> object:
        return {"n": 0, "sum": 0}

    def step(self, state: Any, value: Any) -> tuple[object, object]:
        state["n"] += 1
        state["sum"] = (state["sum"] * self.factor + value["v"]) % 999_983
        return state, {"k": value["k"], "n": state["n"], "v": -state["sum"]}

    def upgrade(self, state: Any, before: ChangeableLogic) -> object:
        assert isinstance(before, Total)
        return {"n": state[0], "sum": state[1] * before.factor}


class SumUp(ChangeableLogic, frozen=True):
    """A process function that sends totals of a time."""

    modulus: int = 89

    def init(self) -> object:
        return []

    def step(self, context: Any, state: Any, value: Any) -> object:
        context.notify()
        return [*state, [value["k"], value["v"]]]

    def on_notify(self, context: Any, state: Any) -> object:
        total = sum(v for _, v in state) % self.modulus
        context.emit({"k": state[0][0], "v": total})
        if len(state) > 1:
            context.emit({"k": state[-1][0], "v": total + len(state)})
        return []


class Ring(ChangeableLogic, frozen=True):
    """A process function that sets timers and answers them."""

    gap: int = 5
    many: int = 4

    def init(self) -> object:
        return []

    def step(self, context: Any, state: Any, value: Any) -> object:
        state.append(value["v"])
        context.emit({"k": value["k"], "v": len(state)})
        for n in range(value["v"] % self.many):
            context.timer(context.time_ms + 1 + (self.gap * value["v"] + 13 * n) % 40)
        shapes.name_timers(context, value["v"])
        return state

    def on_timer(self, context: Any, state: Any) -> object:
        called = shapes.number_of(context.timer_name)
        context.emit({"k": context.key, "v": -len(state) * self.gap - called})
        if len(state) % 2:
            context.timer(context.time_ms + 3)
        return state[1:]

    def upgrade(self, state: Any, before: ChangeableLogic) -> object:
        assert type(before) is Slow
        return state["seen"]


class Slow(Ring, frozen=True):
    """Another class for the same operator, whose states are dicts."""

    def init(self) -> object:
        return {"seen": []}

    def step(self, context: Any, state: Any, value: Any) -> object:
        return {"seen": super().step(context, state["seen"], value)}

    def on_timer(self, context: Any, state: Any) -> object:
        return {"seen": super().on_timer(context, state["seen"])}

    def upgrade(self, state: Any, before: ChangeableLogic) -> object:
        assert type(before) is Ring
        return {"seen": [*state, before.gap]}


CHOICES: Mapping[str, Sequence[type[ChangeableLogic]]] = {
    "turn": [Onward, Backward],
    "tally": [Total, Named],
    "gather": [SumUp],
    "ring": [Ring, Slow],
}
"""The classes for the operators of each kind, the one of the definition first."""


def first_logic(kind: str) -> Any:
    return CHOICES[kind][0]()


def random_changes(
    rng: random.Random, kinds: Mapping[str, str], span: int, number: int
) -> list[SwitchLogic]:
    """Changes of operators, given their kinds by name."""
    found, last = list[SwitchLogic](), 0
    for n in range(number):
        some = rng.sample(sorted(kinds), rng.randint(1, min(2, len(kinds))))
        time = None
        if rng.random() < 0.5:
            last = max(last + 1, rng.randint(0, span))
            time = from_millis(last)
        versions = {name: _random_update(rng, kinds[name]) for name in some}
        found.append(SwitchLogic(f"c{n}", versions, time))
    return found


def _random_update(rng: random.Random, kind: str) -> LogicUpdate:
    chosen = rng.choice(CHOICES[kind])
    (parameter, *_) = chosen.__struct_fields__
    name = None if chosen is CHOICES[kind][0] and rng.random() < 0.2 else chosen.__name__
    if name is not None and rng.random() < 0.5:
        name = f"{HOME}:{name}"
    return LogicUpdate(name, {parameter: rng.randint(1, 9)})


class Versions:
    """The versions of all operators by time, from what was decided."""

    def __init__(
        self, defined: Mapping[str, ChangeableLogic] = {}, changes: Iterable[LogicChange] = ()
    ) -> None:
        self._defined, self._changes = defined, sorted(changes, key=lambda one: one.time)

    def at(self, name: str, time: int) -> Any:
        own = [one for one in self._changes if one.operator == name and one.time <= time]
        return _loaded(own[-1].version) if own else self._defined[name]

    def upgrades(self, name: str) -> list[LogicChange]:
        """The changes of an operator that upgrade its states, in order."""
        found, generation = list[LogicChange](), 0
        for one in self._changes:
            if one.operator == name and one.generation > generation:
                found.append(one)
                generation = one.generation
        return found

    def final(self, state: dict[str, dict[bytes, bytes]]) -> dict[str, dict[bytes, bytes]]:
        """The states of a flow once all upgrades have been applied to each of them."""
        return {
            name: {key: self._final(name, data) for key, data in keyed.items()}
            for name, keyed in state.items()
        }

    def _final(self, name: str, data: bytes) -> bytes:
        if name not in self._defined:
            return data
        generation, state = unmarked(data)
        for one in self.upgrades(name):
            if one.generation > generation:
                state = upgraded(one, state)
        return codec.encode(state)


def upgraded(change: LogicChange, state: object) -> object:
    return _loaded(change.version).upgrade(state, _loaded(change.before))


def _loaded(version: LogicVersion) -> ChangeableLogic:
    return load(version, HOME, "the reference")
