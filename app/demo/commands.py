"""The demo's migrations: half of all bins move by three commands, and what becomes of them.

One command moves bins one by one and one moves its bins at a single time, both as soon as possible
while the data flows; the third is given at the very beginning for a time that the data reaches
only later. They go through the control topic, as anybody's would.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from meander.app.demo.check import Move
from meander.app.demo.report import DemoMigration
from meander.connectors.kafka.client import ANSWER
from meander.connectors.kafka.sink.record_producer import Sender, noted
from meander.connectors.topics.topics import Names
from meander.dataflow.records.batch import Int64s
from meander.schemas.control import Migrate
from meander.schemas.errors import MeanderError
from meander.schemas.status import Accepted, BinMoved, CommandRejected, Completed, Event, Started


@dataclass(frozen=True, slots=True)
class DemoStep:
    """A command, and the share of the records that is to be answered before it."""

    after: float
    command: Migrate


def plan(owners: Sequence[int], times: Int64s) -> list[DemoStep]:
    """What to command for workers 0 and 1, which own bins as `owners` says; ascending by `after`.

    `times` are those of the data, milliseconds since 1970, ascending, shape (n,).

    >>> steps = plan([0] * 16 + [1] * 16, np.arange(100))
    >>> [(len(step.command.bins), step.command.worker, step.command.time) for step in steps]
    [(8, 0, 66), (1, 1, None), (7, 1, None)]
    """
    first, second = ([b for b, owner in enumerate(owners) if owner == worker] for worker in (0, 1))
    reached_later = int(times[2 * len(times) // 3])
    # Bin after bin takes a while, and what is moved last should still be asked for afterwards.
    few, half = len(first) // 16, len(first) // 2
    return [
        DemoStep(0.0, _migrate("at-a-date", second[: len(second) // 2], 0, reached_later)),
        DemoStep(0.15, _migrate("one-by-one", first[:few], 1, None, fluid=True)),
        DemoStep(0.5, _migrate("all-at-once", first[few:half], 1, None)),
    ]


def _migrate(
    name: str, bins: list[int], to: int, at: int | None, *, fluid: bool = False
) -> Migrate:
    strategy = "fluid" if fluid else "all-at-once"
    return Migrate.model_validate(
        {
            "type": "migrate",
            "id": name,
            "bins": bins,
            "worker": to,
            "time": at,
            "strategy": strategy,
        }
    )


@dataclass(frozen=True, slots=True)
class ReceivedEvent:
    """An event, and when it was heard, nanoseconds since 1970."""

    at: int
    event: Event


class DemoCommands:
    """Sends commands, and knows what has become of them; used from two threads."""

    def __init__(self, settings: dict[str, str], names: Names) -> None:
        self._sender = Sender(settings, names.control)
        self._sent: dict[str, tuple[Migrate, int]] = {}
        self._heard: list[ReceivedEvent] = []

    def hear(self, event: Event) -> None:
        """Take in an event of the status topic."""
        self._heard.append(ReceivedEvent(time.time_ns(), event))

    def send(self, command: Migrate) -> None:
        """Put a command on the control topic; returns once it is there."""
        self._sent[command.id] = (command, time.time_ns())
        self._sender.send(command.model_dump_json().encode(), None, noted, [])
        self._sender.flush(ANSWER)

    @property
    def started(self) -> bool:
        """Whether all workers of the flow run."""
        return any(isinstance(heard.event, Started) for heard in self._heard)

    @property
    def unheard(self) -> set[str]:
        """The commands sent that are not accepted. Raises MeanderError if one was rejected."""
        for event in (heard.event for heard in self._heard):
            if isinstance(event, CommandRejected):
                raise MeanderError(f"command {event.id!r}", f"it was rejected: {event.reason}")
        return self._sent.keys() - self._accepted().keys()

    @property
    def open(self) -> set[str]:
        """The commands sent that are not completed. Raises MeanderError if one was rejected."""
        return self.unheard | self._accepted().keys() - self._ended().keys()

    def moves(self) -> list[Move]:
        """Every bin that has moved, and from which time on."""
        return [
            Move(event.bin, event.source, event.target, event.at)
            for event in (heard.event for heard in self._heard)
            if isinstance(event, BinMoved)
        ]

    def migrations(self, reached: Callable[[int], int]) -> list[DemoMigration]:
        """What became of each command that is completed, in the order of their times.

        `reached` says when (nanoseconds since 1970) the data came to a time in milliseconds.
        """
        events = [heard.event for heard in self._heard]
        at = self._accepted()
        keys = dict.fromkeys(at, 0)
        for event in events:
            if isinstance(event, BinMoved):
                keys[event.id] += event.keys
        result = []
        for name, (ended, done) in self._ended().items():
            command, sent = self._sent[name]
            start = sent if command.time is None else reached(command.time)
            result.append(
                DemoMigration(
                    id=name, strategy=command.strategy, worker=command.worker,
                    asked=command.time, at=at[name], bins=done.bins, keys=keys[name],
                    bytes=done.bytes, told_ms=done.ms, wall=(start, ended),
                )
            )  # fmt: skip
        return sorted(result, key=lambda migration: migration.at)

    def _accepted(self) -> dict[str, int]:
        events = [heard.event for heard in self._heard]
        first: dict[str, int] = {}
        for event in events:
            if isinstance(event, Accepted | BinMoved) and event.at is not None:
                first.setdefault(event.id, event.at)
        return first

    def _ended(self) -> dict[str, tuple[int, Completed]]:
        return {
            heard.event.id: (heard.at, heard.event)
            for heard in self._heard
            if isinstance(heard.event, Completed)
        }


def reached(times: Int64s, due: Int64s) -> Callable[[int], int]:
    """When the data comes to a time: that of the first record there; `due` in nanoseconds.

    >>> reached(np.array([10, 20]), np.array([7, 8]))(15)
    8
    """
    return lambda millis: int(due[min(int(np.searchsorted(times, millis)), len(due) - 1)])
