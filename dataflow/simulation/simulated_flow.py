"""Run a flow on simulated workers, in one process and without Kafka or Spark.

Guarantees that a run is a function of its flow, its seed and its faults, and that a failure says
how to repeat it. What runs is the engine itself; simulated are the clock, the network, the state
topic and who takes a turn when. Flows of Kafka topics run in `meander.testing.TestFlow`.

>>> from meander import Flow
>>> flow = Flow("words")
>>> words = flow.source(ListSource([[(1, "dog"), (2, "cat")], [(3, "dog")]]))
>>> sink = ListSink()
>>> words.key_by(lambda w: w).fold("n", lambda: 0, lambda n, w: (n + 1, (w, n + 1))).sink(sink)
"""

from __future__ import annotations

import json
import random
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, Self

from meander.dataflow.api.flow import Flow
from meander.dataflow.api.nodes import SinkNode, SourceNode
from meander.dataflow.api.plan import Plan
from meander.dataflow.checkpoint.initial_state import write
from meander.dataflow.control.colocation import DEFAULT_GROUP
from meander.dataflow.control.command import MoveBins
from meander.dataflow.control.timestamp_overrides import NO_PAST, OverrideHistory
from meander.dataflow.errors import KILLED, lost
from meander.dataflow.interfaces import Rests, SinkWriter, SourceReader
from meander.dataflow.records.loop_times import outer
from meander.dataflow.runtime.operator_factory import WorkerEnvironment
from meander.dataflow.runtime.worker import Worker
from meander.dataflow.simulation.faults import (
    At,
    Control,
    Crash,
    Fault,
    FaultInjector,
    Jump,
    Pause,
    PendingFaults,
    Raise,
    Slow,
)
from meander.dataflow.simulation.in_memory import (
    DeadLetter,
    ListDead,
    ListReader,
    ListSink,
    ListSource,
    ListWriter,
    Result,
)
from meander.dataflow.simulation.rescaler import SimulatedRescaler
from meander.dataflow.simulation.simulator import (
    AbortMoves,
    Command,
    DurableWorld,
    SimClock,
    SimLinks,
    SimTopic,
    Simulation,
    simulate,
)
from meander.dataflow.simulation.transactions import (
    InMemory,
    KeptWriter,
    ListTransactions,
    OnceWriter,
)
from meander.schemas import control
from meander.schemas.control import Rejected, parse_command
from meander.schemas.errors import MeanderError, SetupError
from meander.state.checkpoint.checkpoint import Checkpoint
from meander.state.encoding import codec
from meander.state.keys.ids import COORDINATOR, ExecutionId, WorkerId, member_name
from meander.state.store.spill import Shelf
from meander.state.store.store import Databases
from meander.state.times.time import to_millis

__all__ = [
    "Answer",
    "DeadLetter",
    "ListReader",
    "ListSink",
    "ListSource",
    "ListWriter",
    "Result",
    "SimulatedFlow",
]

REST = 250
"""Steps without any change after which a flow is taken to be at rest."""


Said = Literal["queued", "accepted", "completed", "aborted", "rescaling", "rescaled", "rejected"]
_GOOD: dict[str, Said] = {
    "queued": "queued", "accepted": "accepted", "completed": "completed", "aborted": "aborted",
    "rescaling": "rescaling", "rescaled": "rescaled",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Answer:
    """The last that was said of a command, so far."""

    said: Said
    """In the words of the status topic."""
    reason: str = ""
    """Why it was rejected, and what would be right."""
    moved: int = 0
    """How many bins have moved, of those that were elsewhere."""


class SimulatedFlow:
    """A flow of list sources and sinks on simulated workers; one seed is one run.

    `states` are those that the flow starts from, by operator and key.

    >>> from meander import Flow
    >>> from meander.dataflow.simulation.faults import Control
    >>> flow, sink = Flow("words", bins=2), ListSink()
    >>> words = flow.source(ListSource([[(1, "dog"), (2, "cat")], [(3, "dog")]]))
    >>> words.key_by(lambda w: w).fold("n", lambda: 0, lambda n, w: (n + 1, (w, n + 1))).sink(sink)
    >>> move = Control({"type": "migrate", "id": "m1", "bins": "all", "worker": 1})
    >>> with SimulatedFlow(flow, workers=2, seed=7, faults=[At(move, records=1)]) as run:
    ...     run.run()
    >>> sorted(result.value for result in sink.results)
    [('cat', 1), ('dog', 1), ('dog', 2)]
    >>> run.answer("m1").said
    'completed'
    """

    __test__ = False

    def __init__(
        self,
        flow: Flow,
        workers: int = 2,
        seed: int = 0,
        commands: Sequence[Command] = (),
        databases: Databases | None = None,
        namespace: int = 0,
        *,
        faults: Sequence[At] = (),
        past: OverrideHistory = NO_PAST,
        states: Mapping[str, Mapping[object, object]] | None = None,
        world: DurableWorld | None = None,
    ) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="meander-test-")
        self._own = Databases(self._folder.name, 8 << 20) if databases is None else None
        self._databases = self._own or databases
        self._namespace, self._count = namespace, workers
        self._rng = random.Random(seed)
        self._repeat = f"workers={workers}, seed={seed}, faults={[*faults]!r}"
        self._traps, self._pending = FaultInjector(), PendingFaults([*faults])
        self._over: MeanderError | None = None
        self._dead = ListDead()
        self._plan = Plan(self._traps.laid(flow))
        self.world = world or DurableWorld.empty(self._rng)
        """The topics that the flow's next life finds."""
        if states:
            self._put(states)
        self.sim: Simulation = simulate(
            self._plan, workers, self._rng, self._build, self.world, commands, past
        )
        self._hiring = SimulatedRescaler(self.sim, self.act)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            error.add_note(
                f"It came at step {self.sim.actions} of {type(self).__name__}(flow,"
                f" {self._repeat}), which takes the same course each time."
            )
        for worker in self.workers:
            worker.close()
        if self._own is not None:
            self._own.close()
        self._folder.cleanup()

    # -- what happens

    def run(self) -> None:
        """To the end. Raises AssertionError when there is none, or a fault has not struck before,
        and whatever ends the flow."""
        self.sim.began = self.sim.actions
        while not self.sim.done:
            self.act()
        self.sim.collect()
        self._hiring.step()
        left = self._pending.left
        assert not left, f"the flow came to its end before {left[0]} could strike"

    def settle(self) -> None:
        """Until all is at rest, as far as it comes without much time: more may be fed then."""
        self.sim.began = self.sim.actions
        while True:
            before = self._standing()
            for _ in range(REST):
                self.act()
            if before == self._standing():
                if self._calm:
                    return
                # What has begun waits for time to pass.
                self.sim.clock.advance(min(worker.wait_seconds() for worker in self.workers))

    def advance(self, seconds: float) -> None:
        """Come to rest, let time pass, and come to rest again."""
        self.settle()
        self.sim.clock.advance(seconds)
        self.settle()

    def act(self) -> None:
        """One step of the schedule, after the faults that are due."""
        if self._over is not None:
            raise self._over
        if self._pending.left:
            now = self.sim.actions, self.sim.clock.monotonic(), self._read
            for at in self._pending.due(*now, giving=self._hiring.giving):
                self.strike(at.fault)
        self.sim.act()
        self._hiring.step()

    def strike(self, fault: Fault | Command) -> None:
        """A fault, or a command, now. Raises SetupError for one that the flow cannot have."""
        match fault:
            case Pause(worker, steps):
                self.sim.pauses[self._member(worker)] = self.sim.actions + steps
            case Slow(sender, receiver, steps):
                link = self._member(sender), self._member(receiver)
                self.sim.slowed[link] = self.sim.actions + steps
            case Crash(worker):
                self._over = lost(member_name(self._member(worker)), KILLED)
                raise self._over
            case Raise(operator, calls):
                self._traps.arm(operator, calls)
            case Jump(seconds):
                self.sim.clock.jump(seconds)
            case Control(command):
                self.control(command)
            case Fault():
                raise SetupError(f"fault {fault}", "this flow cannot have it",
                                 "use meander.testing.TestFlow")  # fmt: skip
            case _:
                self._hiring.submit(fault)

    def control(self, command: Mapping[str, object] | bytes) -> None:
        """Put a record on the control topic: a command, as anyone would produce it."""
        data = command if isinstance(command, bytes) else _written(command)
        space = self._plan.flow.space
        try:
            asked = parse_command(data, space.count)
            match asked:
                case control.Rescale():
                    self._hiring.ask(asked)
                case control.Abort():
                    self._hiring.submit(AbortMoves(asked.id, asked.command))
                case control.Migrate():
                    self._hiring.submit(MoveBins.asked(asked, space))
        except Rejected as refusal:
            name = refusal.command or ""
            self.events.append({"type": "rejected", "id": name, "reason": str(refusal)})

    # -- what has become of it

    @property
    def events(self) -> list[dict[str, object]]:
        """What became of the commands, all that was said, in the words of the status topic."""
        return self.sim.events

    @property
    def workers(self) -> list[Worker]:
        """The workers."""
        return self.sim.workers

    @property
    def counters(self) -> Counter[str]:
        """Records read, unreadable, written, bumped (`late_adjusted`), of the future, set aside and
        skipped since the start, of all workers."""
        return sum((worker.counters for worker in self.workers), self.sim.counters)

    @property
    def dead_letters(self) -> list[DeadLetter]:
        """The records that were set aside, in the order in which that happened."""
        return self._dead.letters

    def answer(self, id: str) -> Answer | None:
        """What became of a command; None where nothing was said of it.

        Of one that is rejected as its id is taken this tells the first: see `events`.
        """
        answer, moved = None, self._moved(id)
        for event in self.events:
            match event:
                case {"id": name, "type": type} if name == id and type in _GOOD:
                    answer = Answer(_GOOD[str(type)], moved=moved)
                case {"id": name, "reason": str(reason)} if name == id and answer is None:
                    answer = Answer("rejected", reason)
        return answer

    def frontier(self, name: str) -> int | None:
        """Milliseconds since 1970 before which nothing comes any more at a probe or sink; None once
        nothing comes at all."""
        frontiers = self.sim.controller.frontiers()
        if name not in frontiers:
            raise SetupError(f"probe {name!r}", "the flow has none of that name",
                             f"name one of {', '.join(frontiers)}")  # fmt: skip
        least = min(map(outer, frontiers[name]), default=None)
        return None if least is None else to_millis(least)

    def states(self, operator: str) -> dict[object, object]:
        """The state of each key of a stateful operator."""
        codecs = {node.name: node.codec for node in self._plan.keyed}
        if operator not in codecs:
            raise SetupError(f"operator {operator!r}", "the flow has no state of that name",
                             f"name one of {', '.join(codecs)}")  # fmt: skip
        return {
            codec.decode(key): codecs[operator].decode(state)
            for key, state in self.state().get(operator, {}).items()
        }

    def state(self) -> dict[str, dict[bytes, bytes]]:
        """All keyed state, encoded. Raises AssertionError when a key is on two workers (I2), where
        nothing moves just now."""
        whole: dict[str, dict[bytes, bytes]] = {}
        for worker in self.workers:
            for operator, states in worker.state().items():
                known = whole.setdefault(operator, {})
                assert not known.keys() & states.keys(), "one key's state is on two workers (I2)"
                known.update(states)
        return whole

    def owner(self, key: object, operator: str = DEFAULT_GROUP) -> int:
        """The worker on which a key lives after all moves decided so far: in an operator that moves
        alone, or in all others."""
        bin = self._plan.flow.space.bin_of(codec.encode_key(key))
        return self.sim.controller.owners()[self._plan.groups.number(operator, bin)]

    # -- inside

    @property
    def _calm(self) -> bool:
        """Whether nothing is held up, and nothing is on its way that has begun."""
        return self.sim.calm

    @property
    def _read(self) -> int:
        """Records read so far, also those that could not be."""
        counters = self.counters
        return counters["read"] + counters["unreadable"]

    def _standing(self) -> tuple[object, ...]:
        """All that changes while a flow has something to do."""
        controller = self.sim.controller
        inflight = [worker.inflight for worker in self.workers]
        return self.counters, inflight, len(self.events), controller.frontiers()

    def _moved(self, id: str) -> int:
        """Bins that a command has moved, or those commands that it has brought about."""
        done = [event for event in self.events if event["type"] == "completed"]
        ours = [event for event in done if f"{event['id']}/".startswith(f"{id}/")]
        return sum(int(str(event["bins"])) for event in ours)

    def _member(self, number: int) -> WorkerId:
        known = [COORDINATOR, *(worker.me for worker in self.workers)]
        if number not in known:
            raise SetupError(f"worker {number}", "it takes no part in the flow",
                             f"name one of {', '.join(map(str, known[1:]))}")  # fmt: skip
        return WorkerId(number)

    def _reader(self, node: SourceNode, me: WorkerId, rests: Rests | None) -> SourceReader:
        if not isinstance(node.spec, ListSource):
            raise SetupError(f"source {node.name!r}", "it is no list",
                             "use meander.testing.TestFlow")  # fmt: skip
        if rests is not None:
            return node.spec.resumed(rests, self._rng)
        return node.spec.reader(me, self._count, self._rng)

    def _writer(self, node: SinkNode, me: WorkerId) -> InMemory:
        if not isinstance(node.spec, ListSink):
            raise SetupError(f"sink {node.name!r}", "it is no list",
                             "use meander.testing.TestFlow")  # fmt: skip
        return node.spec.writer(me, self._rng)

    def _put(self, states: Mapping[str, Mapping[object, object]]) -> None:
        """The flow starts from these, as from a bootstrap."""
        manifests = tuple(write(self._plan, states, self.world.state))
        space = self._plan.flow.space
        self.world.checkpoints.append(Checkpoint(1, ExecutionId(0), space, 0, manifests))

    def _build(
        self, me: WorkerId, links: SimLinks, clock: SimClock, topic: SimTopic, joins: bool
    ) -> Worker:
        assert self._databases is not None
        database = self._databases.of(me)
        once = self._plan.flow.delivery == "exactly_once"
        transactions = ListTransactions(self.world.ledger) if once else None

        def opened(node: SinkNode) -> SinkWriter:
            writer = self._writer(node, me)
            if transactions is None:
                return writer
            once = KeptWriter if node.name in self._plan.outboxes else OnceWriter
            return once(transactions, writer)

        site = WorkerEnvironment(
            me,
            self._count,
            clock,
            topic,
            self._dead,
            lambda name, *how: database.store(f"{self._namespace}/{name}", *how),
            lambda name: Shelf(database, f"{self._namespace}/{name}"),
            lambda node, rests: self._reader(node, me, rests),
            opened,
            self.world.execution,
            self.world.start,
            self.world.in_flight,
            joins=joins,
            transactions=transactions,
        )
        return Worker(self._plan, site, links)


def _written(command: Mapping[str, object]) -> bytes:
    try:
        return json.dumps(command).encode()
    except (TypeError, ValueError) as error:
        raise SetupError(
            f"command {command!r}",
            f"it cannot be written as JSON ({error})",
            "give texts, numbers and lists, or bytes as they are",
        ) from error
