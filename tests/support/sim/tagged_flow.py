"""A flow of changeable logic whose results tell the version that has given them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from meander import ChangeableLogic, Flow, KafkaSink, KafkaSource
from meander.testing import TestFlow

HOME = __name__
KEYS = 8
Command = dict[str, object]


class Above(ChangeableLogic, frozen=True):
    limit: float = -1

    def __call__(self, n: int) -> bool:
        return n > self.limit


class Tagged(ChangeableLogic, frozen=True):
    """A fold whose results tell the version that has given them."""

    tag: str = "first"
    step_size: int = 1

    def init(self) -> Any:
        return 0

    def step(self, state: Any, n: int) -> tuple[object, object]:
        state += self.step_size
        return state, [n, self.tag, state]


class Listed(Tagged, frozen=True):
    """The same fold whose states are lists."""

    tag: str = "listed"

    def init(self) -> Any:
        return [0]

    def step(self, state: Any, n: int) -> tuple[object, object]:
        state = [state[0] + self.step_size, *state[1:]]
        return state, [n, self.tag, *state]

    def upgrade(self, state: Any, before: ChangeableLogic) -> object:
        assert isinstance(before, Tagged)
        return [state, before.tag]


class Longer(Listed, frozen=True):
    """The same fold whose lists have one more element."""

    tag: str = "longer"

    def upgrade(self, state: Any, before: ChangeableLogic) -> object:
        assert type(before) is Listed
        return [*state, before.tag]


def tagged_flow() -> Flow:
    flow = Flow("f", bins=3)
    flow.module = HOME
    passed = flow.source(KafkaSource("in")).filter(Above(), name="above")
    passed.key_by(lambda n: n % KEYS).fold("tagged", Tagged()).sink(KafkaSink("out"))
    return flow


def read(run: TestFlow, second: int, values: Iterable[int] = range(KEYS)) -> None:
    """Read each key once at a second, from both partitions."""
    for n in values:
        run.feed("in", n, ms=second * 1_000, partition=n % 2)
    run.run_until_idle()


def change(
    id: str, operator: str = "tagged", logic: str | None = None, second: int | None = None,
    **parameters: object,
) -> Command:  # fmt: skip
    time = None if second is None else second * 1_000
    return combined(id, time, **{operator: {"logic": logic, "parameters": parameters}})


def combined(id: str, time: int | None = None, **operators: object) -> Command:
    return {"type": "change_logic", "id": id, "operators": operators, "time": time}


def events(run: TestFlow, id: str) -> list[object]:
    return [event["type"] for event in run.events if event.get("id") == id]


def reason(run: TestFlow, id: str) -> str:
    """The reason of the only rejection of a command."""
    (found,) = (
        str(event["reason"])
        for event in run.events
        if event.get("id") == id and event["type"] == "rejected"
    )
    return found


def versions(run: TestFlow) -> list[str]:
    """The versions that have come into force, in order."""
    found = [event["versions"] for event in run.events if event["type"] == "logic_changed"]
    return [str(version) for one in found if isinstance(one, dict) for version in one.values()]


def tags(run: TestFlow) -> list[list[str]]:
    """The tags of the results, one list for each time at which all keys were read."""
    values: Any = run.values("out")
    return [sorted({one[1] for one in values[n : n + KEYS]}) for n in range(0, len(values), KEYS)]
