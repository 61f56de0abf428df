"""Named steps, as data: what a simulated process does to the world outside of it, and what strikes
before or after.

The engine knows nothing of this: `watched.py` has the world's things tell of each call.

>>> from tests.support.property.faults import Kill
>>> There(Kill(), Where(Step("transaction", "commit", "after"), WorkerId(1), nth=3)).where.process
1
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeVar

from meander.dataflow.simulation.faults import Fault
from meander.state.keys.ids import COORDINATOR, WorkerId

T = TypeVar("T")
Protocol = Literal[
    "link", "marker", "command", "bin", "partition", "installation", "state topic", "in-flight",
    "checkpoint record", "decision", "transaction", "life", "tombstone",
]  # fmt: skip
Action = Literal[
    "send", "hand over", "install", "write", "flush", "read", "begin", "commit", "forget"
]
Moment = Literal["before", "after"]
_MOMENTS: Final[tuple[Moment, Moment]] = ("before", "after")


@dataclass(frozen=True, slots=True, order=True)
class Step:
    """Something that a process does to others, or to what outlives it. A `flush` is the news that
    what was written is durable, a `read` that what was asked for is here."""

    protocol: Protocol
    action: Action
    moment: Moment

    def __str__(self) -> str:
        return f"{self.moment} {self.action} of {self.protocol}"


_BOTH: dict[Protocol, Sequence[Action]] = {
    "link": ["send"],
    "marker": ["send"],
    "command": ["send"],
    "bin": ["hand over", "forget"],
    "partition": ["hand over"],
    "installation": ["install"],
    "state topic": ["write"],
    "in-flight": ["write"],
    "checkpoint record": ["write"],
    "decision": ["write"],
    "transaction": ["begin", "commit"],
    "life": ["begin"],
    "tombstone": ["forget"],
}
_NEWS: dict[Protocol, Sequence[Action]] = {
    "state topic": ["flush", "read"],
    "in-flight": ["flush", "read"],
    "checkpoint record": ["flush"],
    "decision": ["flush"],
}
"""What a process hears of: to it, it happens as it hears of it."""
STEPS: Final = (
    *(Step(one, action, moment) for one, some in _BOTH.items() for action in some
      for moment in _MOMENTS),
    *(Step(one, action, "after") for one, some in _NEWS.items() for action in some),
)  # fmt: skip


@dataclass(frozen=True, slots=True, order=True)
class Where:
    """The n-th time that a process of a life comes by a step; any process, where none is named."""

    step: Step
    process: WorkerId | None
    """A worker's number; -1 is the coordinator."""
    nth: int = 1


@dataclass(frozen=True, slots=True)
class There:
    """A fault, and where it strikes; the process that comes by there is the one that it hits."""

    fault: Fault
    where: Where


_USUAL: dict[Protocol, float] = {"link": 150, "command": 8, "transaction": 5, "state topic": 6}
"""How often a step comes by in a life of random flows, about; others do three times."""


def somewhere(rng: random.Random, steps: Sequence[Step] = STEPS) -> Where:
    """Where any process comes by one of some steps, as a rule not for the first time."""
    step = rng.choice(steps)
    return Where(step, None, 1 + int(rng.expovariate(1 / _USUAL.get(step.protocol, 3))))


class Course:
    """What the processes of one life come by, and what strikes them there."""

    def __init__(self, faults: Sequence[There], strike: Callable[[Fault, WorkerId], None]) -> None:
        self._left, self._strike = list(faults), strike
        self.passed = Counter[tuple[Step, WorkerId | None]]()
        self.struck: list[There] = []

    def end(self) -> None:
        """Nothing strikes any more."""
        self._left.clear()

    def reach(self, step: Step, process: WorkerId) -> None:
        """A process comes by a step."""
        places: list[tuple[Step, WorkerId | None]] = [(step, process), (step, None)]
        self.passed.update(places)
        here = [Where(*place, self.passed[place]) for place in places]
        for one in [one for one in self._left if one.where in here]:
            self._left.remove(one)
            self.struck.append(one)
            self._strike(one.fault, process)


class Turn:
    """Whose it is: which process of which life comes by a step."""

    course: Course

    def __init__(self) -> None:
        self.process = COORDINATOR

    def reach(self, protocol: Protocol, action: Action, moment: Moment = "after") -> None:
        """It comes by a step."""
        self.course.reach(Step(protocol, action, moment), self.process)

    def passing(self, protocol: Protocol, action: Action, call: Callable[[], T]) -> T:
        """What a call gives, between the step before it and the one after."""
        self.reach(protocol, action, "before")
        given = call()
        self.reach(protocol, action, "after")
        return given
