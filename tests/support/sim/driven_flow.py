"""A flow with the driver's part in commands: a manual control topic, pool and decision log."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar, cast

from meander import Flow
from meander.app.driver.commands import CommandHandler, OpenCommands
from meander.app.loading.flow_code import FlowCode
from meander.app.recovery.decision_log import DecisionLog
from meander.connectors.topics.control import ControlTopic, RawCommand
from meander.dataflow.control.decisions import CommandsDoneDecision, Decision
from meander.dataflow.control.resources import Resources
from meander.dataflow.coordinator.rescaler import Rescaler
from meander.dataflow.simulation.in_memory import ListSink, ListSource
from meander.dataflow.simulation.simulator import Simulation
from meander.dataflow.simulation.worker_pool import SimulatedPool
from meander.schemas.status import Event
from meander.state.keys.ids import WorkerId
from meander.state.times.time import to_millis
from meander.testing import TestFlow
from tests.support.sim.manual_flow import until

PARTITIONS, RECORDS, KEYS, SLOTS = 4, 1200, 40, 5
E = TypeVar("E", bound=Event)


class ManualTopic:
    """A control topic whose reader gets each record at the poll after its `put`."""

    def __init__(self) -> None:
        self.committed: list[int] = []
        self._records: list[RawCommand] = []
        self._next = 0

    def put(self, *commands: dict[str, object]) -> None:
        for command in commands:
            told = json.dumps({"meander": "command"} | command).encode()
            self._records.append(RawCommand(len(self._records), told, 0))

    def start(self, done: CommandsDoneDecision) -> None:
        self._next = done.first

    def poll(self) -> list[RawCommand]:
        polled, self._next = self._records[self._next :], len(self._records)
        return polled

    def commit(self, offset: int) -> None:
        self.committed.append(offset)


class ManualDecisionLog:
    """A decision log whose decisions are durable at once, unless a test holds them back."""

    def __init__(self) -> None:
        self.written: list[Decision] = []
        self.durable = 0
        self.held = False

    def __call__(self, decision: Decision) -> Callable[[], bool]:
        self.written.append(decision)
        self.flush(self.held)
        number = self.started
        return lambda: self.durable >= number

    def flush(self, held: bool = False) -> None:
        self.held = held
        if not held:
            self.durable = self.started

    @property
    def started(self) -> int:
        return len(self.written)


class ManualPool(SimulatedPool):
    """Simulated workers; those that are launched are ready when a test says so."""

    def __init__(self, sim: Simulation) -> None:
        super().__init__(sim, {})
        self.launched: list[WorkerId] = []
        self.up = False

    def launch(self, workers: Mapping[WorkerId, Resources]) -> None:
        self.launched += workers
        super().launch(workers)

    @property
    def ready(self) -> Sequence[WorkerId]:
        return super().ready if self.up else []


class Driven:
    """A flow of two workers and four bins, with the driver's part in commands."""

    def __init__(
        self, run: TestFlow, sink: ListSink, topic: ManualTopic, open_commands: OpenCommands,
        plan_cooldown: float,
    ) -> None:  # fmt: skip
        self.sink, self.sim, self.coordinator = sink, run.sim, run.sim.coordinator
        self.topic, self.pool = topic, ManualPool(run.sim)
        self.decision_log = ManualDecisionLog()
        self.open_commands, self.has_all_files = open_commands, True
        self.rescaler = Rescaler(self.coordinator, self.pool, run.sim.clock, SLOTS, plan_cooldown)
        self.commands = CommandHandler(
            run.sim.plan, cast(ControlTopic, self.topic), cast(DecisionLog, self.decision_log),
            self.coordinator, self.rescaler, open_commands, FlowCode(Path(__file__)),
            lambda: self.has_all_files,
        )  # fmt: skip
        self.told: list[Event] = []
        self._heard = 0
        self.until(lambda: self.coordinator.ready)

    def migrate(self, id: str, worker: int, **more: object) -> dict[str, object]:
        return {"type": "migrate", "id": id, "bins": "all", "worker": worker} | more

    def soon(self) -> int:
        """A time that can be named yet, milliseconds."""
        least = self.coordinator.closed_before
        assert least is not None
        return to_millis(least) + 20

    def act(self) -> None:
        """The driver looks at everything once."""
        self._tell(self.commands.poll())
        self.flow()

    def stop(self, flush: Callable[[], None]) -> None:
        """The flow ends."""
        self._tell(self.commands.end(flush))

    def _tell(self, events: Iterable[Event]) -> None:
        for event in events:
            self.open_commands.note(event)
            self.told.append(event)

    def flow(self) -> None:
        """Take a step of the engine, and tell its events."""
        self.sim.act()
        for event in self.sim.events[self._heard :]:
            self._tell(self.commands.follow(event))
        self._heard = len(self.sim.events)

    def until(self, holds: Callable[[], bool], act: Callable[[], None] | None = None) -> None:
        until(holds, act or self.act, 100_000)

    def until_passed(self, millis: int) -> None:
        """No command can have this time any more."""
        self.until(
            lambda: (least := self.coordinator.closed_before) is None or to_millis(least) > millis
        )

    def until_told(self, kind: type[Event], id: str) -> None:
        self.until(lambda: any(isinstance(event, kind) and event.key == id for event in self.told))

    def said(self, id: str) -> list[str]:
        """What became of a command, bin for bin left out."""
        return [one.type for one in self.told if one.key == id and one.type != "bin_moved"]

    def the(self, kind: type[E], id: str) -> E:
        """The only event of a kind that was told of a command."""
        (found,) = (event for event in self.told if isinstance(event, kind) and event.key == id)
        return found

    def bins(self) -> set[int]:
        """Who has any."""
        return {*map(int, self.coordinator.owners())}

    def end(self) -> None:
        """Let the flow end, whatever the answers to its commands are."""
        self.until(lambda: self.sim.done)
        counts = [value for value in self.sink.values if isinstance(value, tuple)]
        assert len(counts) == len({*counts}) == PARTITIONS * RECORDS


@contextmanager
def driven_flow(
    topic: ManualTopic | None = None,
    open_commands: OpenCommands | None = None,
    plan_cooldown: float = 0.0,
) -> Iterator[Driven]:
    """Run an execution of a flow of two workers and four bins."""
    sink, flow = ListSink(), Flow("f", bins=2)
    records = [[(ms, (ms + p) % KEYS) for ms in range(RECORDS)] for p in range(PARTITIONS)]
    keyed = flow.source(ListSource(records)).key_by(lambda k: k)
    keyed.fold("n", lambda: 0, lambda n, k: (n + 1, (k, n + 1))).sink(sink)
    with TestFlow(flow, 2, seed=7) as run:
        opened = open_commands or OpenCommands()
        yield Driven(run, sink, topic or ManualTopic(), opened, plan_cooldown)
