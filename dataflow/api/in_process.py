"""Runs of a flow in this process, as streams and flows offer them to notebooks.

What runs them lies above the engine, with Kafka and the settings, so it is found by its name: no
package imports one above it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Protocol, cast

from meander.dataflow.metrics.counters import counted, in_words

if TYPE_CHECKING:
    from meander.dataflow.api.builder import Definition
    from meander.dataflow.api.flow import Flow
    from meander.dataflow.api.nodes import Output
    from meander.dataflow.simulation.in_memory import DeadLetter

RUNNER = "meander.app.in_process.api"
"""The module that runs flows in this process."""


@dataclass(frozen=True)
class InProcessResult:
    """The result of a run in this process."""

    counters: Mapping[str, int]
    """Records read, written and others, by name."""
    dead_letters: Sequence[DeadLetter]
    seconds: float

    def __repr__(self) -> str:
        letters = counted(len(self.dead_letters), "dead letter")
        return f"<{self.seconds:.1f} s: {in_words(self.counters)}; {letters}>"


class InProcessRunner(Protocol):
    """A runner of flows in this process."""

    def run(
        self, flow: Flow, *, until_end: bool, fire_timers: bool, start: str, bootstrap: str | None
    ) -> InProcessResult:
        """Run a flow."""

    def take(
        self, flow: Definition, at: Output, count: int, *, start: str, bootstrap: str | None
    ) -> list[object]:
        """Return the first values at an output."""


def in_process() -> InProcessRunner:
    """Return the runner of this installation."""
    return cast(InProcessRunner, import_module(RUNNER))
