"""A simulated world that reports each call as a step, and in which faults strike.

`WatchedWorld` has topics, a ledger, a decision log and checkpoints, and each use of them passes
steps. `watch_links` and `watch_worker` report what a process sends, commits, installs and releases.
A new step is one more `passing` or `reach` around its call.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Self, TypeVar

import msgpack

from meander.dataflow.api.plan import Plan
from meander.dataflow.checkpoint.checkpoint_coordinator import CheckpointCoordinator
from meander.dataflow.control.bin_handoff import BinHandoff
from meander.dataflow.control.decisions import Decision, JointDecision, PendingDecisions
from meander.dataflow.control.partition_handoff import PartitionHandoff
from meander.dataflow.control.timestamp_overrides import OverrideHistory
from meander.dataflow.exactly_once.commit_markers import CommitMarker
from meander.dataflow.interfaces import Clock, Frame, Links
from meander.dataflow.records.batch import Batch
from meander.dataflow.runtime.worker import Worker
from meander.dataflow.simulation.simulator import DurableWorld, SimTopic
from meander.dataflow.simulation.transactions import Ledger, Show
from meander.dataflow.wire import CHECKPOINT, DATA
from meander.state.checkpoint.checkpoint import Checkpoint
from meander.state.keys.ids import COORDINATOR, ExecutionId, WorkerId
from meander.state.layers.topic import RecordLocation, Ticket
from tests.support.property.steps import Action, Protocol, Turn

T = TypeVar("T")
_TOPICS: tuple[Protocol, Protocol] = ("state topic", "in-flight")


class Outage(random.Random):
    """A random generator by which nothing happens while the broker is down."""

    down = False

    def random(self) -> float:
        return 1.0 if self.down else super().random()

    def getrandbits(self, count: int) -> int:
        # Else choices would be made out of `random`, and never come to an end.
        return super().getrandbits(count)


class WatchedTopic(SimTopic):
    """A topic whose tombstoned records vanish at once, or at any moment later."""

    def __init__(self, rng: random.Random, name: Protocol, turn: Turn) -> None:
        super().__init__(rng)
        self._name, self._turn = name, turn
        self._tombs: list[RecordLocation] = []
        self._haste = rng.choice([1.0, 0.5, 0.05])

    def append(self, key: bytes, payload: bytes) -> Ticket:
        self._compact()
        return self._turn.passing(self._name, "write", lambda: SimTopic.append(self, key, payload))

    def appended(self, ticket: Ticket) -> RecordLocation | None:
        place = super().appended(ticket)
        if place is not None:
            self._turn.reach(self._name, "flush")
        return place

    def fetch(self, locations: Sequence[RecordLocation]) -> Ticket:
        self._compact()
        return super().fetch(locations)

    def fetched(self, ticket: Ticket) -> list[bytes] | None:
        found = super().fetched(ticket)
        if found is not None:
            self._turn.reach(self._name, "read")
        return found

    def delete(self, locations: Sequence[RecordLocation]) -> None:
        for place in locations:
            self._turn.passing("tombstone", "forget", partial(self._tombs.append, place))
        self._compact()

    def _compact(self) -> None:
        while self._tombs and self._rng.random() < self._haste:
            super().delete([self._tombs.pop(self._rng.randrange(len(self._tombs)))])

    def lose(self) -> None:
        """Lose some of the records whose senders have ended before they were durable."""
        unknown = [
            answer for answer in self._pending.values() if isinstance(answer, RecordLocation)
        ]
        super().delete([place for place in unknown if self._rng.random() < 0.5])

    def corrupt(self, place: RecordLocation, corrupted: Callable[[bytes], bytes]) -> None:
        """Replace the record at a location."""
        key, payload = self._records[place.offset]
        if payload is not None:
            self._records[place.offset] = key, corrupted(payload)


class WatchedLedger(Ledger):
    """A ledger that shows each transaction at a step, and forgets commit markers at one."""

    turn: Turn

    def commit(self, mark: CommitMarker, show: Show) -> None:
        self.turn.passing("transaction", "commit", lambda: Ledger.commit(self, mark, show))

    def _forget(self, end: int) -> None:
        self.turn.passing("tombstone", "forget", lambda: Ledger._forget(self, end))


class WatchedWorld(DurableWorld):
    """A world that reports each call as a step, and in which faults strike."""

    turn: Turn
    topics: tuple[WatchedTopic, WatchedTopic]
    outage: Outage
    until: int
    """The broker is down up to this step."""
    steps: int
    future: Checkpoint | None
    """A checkpoint whose record is in the format of a later release."""

    @classmethod
    def empty(cls, rng: random.Random) -> Self:
        turn, chance = Turn(), Outage(rng.random())
        ledger = WatchedLedger(chance)
        state, in_flight = (WatchedTopic(chance, name, turn) for name in _TOPICS)
        world = cls(state, in_flight, ledger)
        world.turn = ledger.turn = turn
        world.topics = state, in_flight
        world.outage, world.until, world.steps, world.future = chance, 0, 0, None
        return world

    def tick(self) -> None:
        """Count a step of any execution."""
        self.steps += 1
        self.outage.down = self.steps < self.until

    def start_execution(self, plan: Plan, workers: int, past: OverrideHistory) -> None:
        self.until, self.outage.down = 0, False
        for topic in self.topics:
            topic.lose()
        self.turn.passing(
            "execution", "begin", lambda: DurableWorld.start_execution(self, plan, workers, past)
        )
        if self.restored is not None and self.restored is self.future:
            Checkpoint.from_bytes(of_the_next_version(self.restored.to_bytes()))

    def write_decision(self, execution: ExecutionId, decision: Decision) -> Callable[[], bool]:
        def write() -> Callable[[], bool]:
            durable = self.turn.passing(
                "decision", "write", lambda: DurableWorld.write_decision(self, execution, decision)
            )
            return self._flushing("decision", durable)

        if not isinstance(decision, JointDecision):
            return write()
        durable = self.turn.passing("joint decision", "write", write)
        return self._flushing("joint decision", durable)

    def checkpoint_coordinator(
        self, plan: Plan, links: Links, clock: Clock, durable: Callable[[], bool]
    ) -> CheckpointCoordinator:
        watch_links(links, self.turn)
        up = lambda: durable() and not self.outage.down  # noqa: E731
        taking = super().checkpoint_coordinator(plan, links, clock, up)
        write = taking._write

        def written(checkpoint: Checkpoint) -> Callable[[], Checkpoint | None]:
            kept = self.turn.passing("checkpoint record", "write", lambda: write(checkpoint))
            return self._flushing("checkpoint record", kept)

        taking._write = written
        return taking

    def _flushing(self, protocol: Protocol, durable: Callable[[], T]) -> Callable[[], T]:
        def known() -> T:
            found = durable()
            if found:
                self.turn.reach(protocol, "flush")
            return found

        return known


def of_the_next_version(record: bytes) -> bytes:
    """Return a record in the next format; its first byte is the version."""
    return bytes([record[0] + 1]) + record[1:]


def watch_links(links: Links, turn: Turn) -> None:
    """Report what a member sends as steps."""
    send = links.send

    def sending(peer: WorkerId, frame: Frame) -> None:
        turn.passing(*sent(frame), lambda: send(peer, frame))

    _replace(links, "send", sending)


def sent(frame: Frame) -> tuple[Protocol, Action]:
    """Return the step that sends a frame, by its head alone."""
    kind = frame[0][:1]
    if kind == DATA:
        _, _, payload, _ = msgpack.unpackb(frame[0][1:])
        return _SENT.get(payload, ("command", "send"))
    return ("marker" if kind == CHECKPOINT else "link"), "send"


_SENT: dict[str, tuple[Protocol, Action]] = {
    Batch.__name__: ("link", "send"),
    BinHandoff.__name__: ("bin", "hand over"),
    PartitionHandoff.__name__: ("partition", "hand over"),
}


def watch_decisions(decisions: PendingDecisions, world: WatchedWorld) -> None:
    """Report the sending of joint decisions as steps, and check that each decision is durable when
    the current execution sends it: the next execution has to know it (I5)."""
    add, execution = decisions.add, world.execution

    def adding(decision: Decision, send: Callable[[], None]) -> None:
        is_part = decisions._parts is not None

        def sending() -> None:
            durable = world.decisions[: world.durable_decisions]
            known = any(one is decision for _, one in durable)
            assert is_part or known or execution != world.execution, "what is sent is durable"
            send()

        is_joint = isinstance(decision, JointDecision)
        passing = partial(world.turn.passing, "joint decision", "send", sending)
        add(decision, passing if is_joint else sending)

    _replace(decisions, "add", adding)


def watch_worker(worker: Worker, turn: Turn) -> None:
    """Report what a worker does in its turns as steps."""
    step, parts = worker.step, worker.parts.operators

    def stepping() -> bool:
        turn.process = worker.me
        try:
            return step()
        finally:
            turn.process = COORDINATOR

    _replace(worker, "step", stepping)
    for outlet in parts.outgoing:
        _watch(outlet.keyed.bin_layers, "adopt", turn, "installation", "install")
        _watch(outlet.keyed.bin_layers, "release", turn, "bin", "forget")
    if parts.environment.transactions is not None:
        _watch(parts.environment.transactions, "commit", turn, "transaction", "begin")


def _watch(owner: object, method: str, turn: Turn, protocol: Protocol, action: Action) -> None:
    call = getattr(owner, method)

    def passing(*words: Any) -> Any:
        return turn.passing(protocol, action, lambda: call(*words))

    _replace(owner, method, passing)


def _replace(owner: object, method: str, by: Callable[..., object]) -> None:
    setattr(owner, method, by)
