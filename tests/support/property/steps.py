"""Named steps, as data: what a simulated process does to the world, and the faults at them.

The engine knows nothing of steps: `watched.py` reports each call of the simulated world.

>>> from tests.support.property.faults import Kill
>>> third = Occurrence(Step("transaction", "commit", "after"), WorkerId(1), nth=3)
>>> PlannedFault(Kill(), third).where.process
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
    "checkpoint record", "decision", "transaction", "execution", "tombstone", "joint decision",
]  # fmt: skip
Action = Literal[
    "send", "hand over", "install", "write", "flush", "read", "begin", "commit", "forget"
]
Moment = Literal["before", "after"]
_MOMENTS: Final[tuple[Moment, Moment]] = ("before", "after")


@dataclass(frozen=True, slots=True, order=True)
class Step:
    """A step that a process makes towards another process or a durable record.

    A `flush` reports that a written record is durable, a `read` that a requested one has arrived. A
    reconfiguration is prepared before the write of its joint decision.
    """

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
    "execution": ["begin"],
    "tombstone": ["forget"],
    "joint decision": ["write", "send"],
}
_NEWS: dict[Protocol, Sequence[Action]] = {
    "state topic": ["flush", "read"],
    "in-flight": ["flush", "read"],
    "checkpoint record": ["flush"],
    "decision": ["flush"],
    "joint decision": ["flush"],
}
"""Steps that a process only learns of, so they have no moment before."""
STEPS: Final = (
    *(Step(one, action, moment) for one, some in _BOTH.items() for action in some
      for moment in _MOMENTS),
    *(Step(one, action, "after") for one, some in _NEWS.items() for action in some),
)  # fmt: skip
PLAN_STEPS: Final = tuple(step for step in STEPS if step.protocol == "joint decision")
"""The steps of reconfigurations."""
USUAL_STEPS: Final = tuple(step for step in STEPS if step not in PLAN_STEPS)
"""The steps of any flow."""


@dataclass(frozen=True, slots=True, order=True)
class Occurrence:
    """An occurrence of a step: the n-th time that a process, or any process, passes it."""

    step: Step
    process: WorkerId | None
    """A worker's number; -1 is the coordinator."""
    nth: int = 1


@dataclass(frozen=True, slots=True)
class PlannedFault:
    """A fault at an occurrence; it strikes the process that passes there."""

    fault: Fault
    where: Occurrence


_USUAL: dict[Protocol, float] = {"link": 150, "command": 8, "transaction": 5, "state topic": 6}
"""How often an execution of random flows passes a step, about; others three times."""


def random_occurrence(rng: random.Random, steps: Sequence[Step] = USUAL_STEPS) -> Occurrence:
    """Draw an occurrence of one of some steps by any process, as a rule not the first."""
    step = rng.choice(steps)
    return Occurrence(step, None, 1 + int(rng.expovariate(1 / _USUAL.get(step.protocol, 3))))


class StepFaults:
    """The steps that the processes of one execution pass, and the faults that strike there."""

    def __init__(
        self, faults: Sequence[PlannedFault], strike: Callable[[Fault, WorkerId], None]
    ) -> None:
        self._left, self._strike = list(faults), strike
        self.passed = Counter[tuple[Step, WorkerId | None]]()
        self.struck: list[PlannedFault] = []

    def end(self) -> None:
        """Let no fault strike any more."""
        self._left.clear()

    def reach(self, step: Step, process: WorkerId) -> None:
        """Count that a process passes a step, and apply the faults that are planned there."""
        places: list[tuple[Step, WorkerId | None]] = [(step, process), (step, None)]
        self.passed.update(places)
        here = [Occurrence(*place, self.passed[place]) for place in places]
        for one in [one for one in self._left if one.where in here]:
            self._left.remove(one)
            self.struck.append(one)
            self._strike(one.fault, process)


class Turn:
    """The turn of a process, which passes steps."""

    step_faults: StepFaults

    def __init__(self) -> None:
        self.process = COORDINATOR

    def reach(self, protocol: Protocol, action: Action, moment: Moment = "after") -> None:
        """Pass a step."""
        self.step_faults.reach(Step(protocol, action, moment), self.process)

    def passing(self, protocol: Protocol, action: Action, call: Callable[[], T]) -> T:
        """Make a call between the step before it and the step after it; return its result."""
        self.reach(protocol, action, "before")
        given = call()
        self.reach(protocol, action, "after")
        return given
