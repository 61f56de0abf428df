"""The simulated world, which tells of each call, and in which things may go wrong.

`Watched` has topics, a ledger, a journal and checkpoints that are steps to those who use them;
`watch_links` and `watch_worker` do the same for what a process sends, commits, installs and lets
go. A new step is one more `passing` or `reach` where its call goes by.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Self, TypeVar

import msgpack

from meander.dataflow.api.plan import Plan
from meander.dataflow.checkpoint.checkpoint_coordinator import CheckpointCoordinator
from meander.dataflow.control.decisions import Decision
from meander.dataflow.control.timestamp_overrides import OverrideHistory
from meander.dataflow.exactly_once.commit_markers import CommitMarker
from meander.dataflow.interfaces import Frame, Links
from meander.dataflow.runtime.worker import Worker
from meander.dataflow.simulation.simulator import DurableWorld, SimClock, SimTopic
from meander.dataflow.simulation.transactions import Ledger, Show
from meander.dataflow.wire import CUT, DATA
from meander.state.checkpoint.checkpoint import Checkpoint
from meander.state.keys.ids import COORDINATOR, ExecutionId, WorkerId
from meander.state.layers.topic import RecordLocation, Ticket
from tests.support.property.steps import Action, Protocol, Turn
from tests.support.sim.manual_flow import assembly

T = TypeVar("T")
_TOPICS: tuple[Protocol, Protocol] = ("state topic", "in-flight")


class Outage(random.Random):
    """Nothing that is left to chance comes about while the broker is down."""

    down = False

    def random(self) -> float:
        return 1.0 if self.down else super().random()

    def getrandbits(self, count: int) -> int:
        # Else choices would be made out of `random`, and never come to an end.
        return super().getrandbits(count)


class WatchedTopic(SimTopic):
    """A topic; what is tombstoned vanishes at once, or at any moment later."""

    def __init__(self, rng: random.Random, name: Protocol, turn: Turn) -> None:
        super().__init__(rng)
        self._name, self._turn = name, turn
        self._tombs: list[RecordLocation] = []
        self._haste = rng.choice([1.0, 0.5, 0.05])

    def append(self, key: bytes, payload: bytes) -> Ticket:
        self._compact()
        return self._turn.passing(self._name, "write", lambda: SimTopic.append(self, key, payload))

    def placed(self, ticket: Ticket) -> RecordLocation | None:
        place = super().placed(ticket)
        if place is not None:
            self._turn.reach(self._name, "flush")
        return place

    def fetch(self, places: Sequence[RecordLocation]) -> Ticket:
        self._compact()
        return super().fetch(places)

    def fetched(self, ticket: Ticket) -> list[bytes] | None:
        found = super().fetched(ticket)
        if found is not None:
            self._turn.reach(self._name, "read")
        return found

    def forget(self, places: Sequence[RecordLocation]) -> None:
        for place in places:
            self._turn.passing("tombstone", "forget", partial(self._tombs.append, place))
        self._compact()

    def _compact(self) -> None:
        while self._tombs and self._rng.random() < self._haste:
            super().forget([self._tombs.pop(self._rng.randrange(len(self._tombs)))])

    def lose(self) -> None:
        """Of what nobody knows to be durable some never will be: who has sent it is no more."""
        unknown = [
            answer for answer in self._pending.values() if isinstance(answer, RecordLocation)
        ]
        super().forget([place for place in unknown if self._rng.random() < 0.5])

    def spoil(self, place: RecordLocation, spoilt: Callable[[bytes], bytes]) -> None:
        """What lies at a place is another from now on."""
        key, payload = self._records[place.offset]
        if payload is not None:
            self._records[place.offset] = key, spoilt(payload)


class WatchedLedger(Ledger):
    """Of transactions, each visible at a step; and of marks."""

    turn: Turn

    def settle(self, mark: CommitMarker, show: Show) -> None:
        self.turn.passing("transaction", "commit", lambda: Ledger.settle(self, mark, show))

    def _forget(self, end: int) -> None:
        self.turn.passing("tombstone", "forget", lambda: Ledger._forget(self, end))


class Watched(DurableWorld):
    """A world that tells of each call, and in which things may go wrong."""

    turn: Turn
    topics: tuple[WatchedTopic, WatchedTopic]
    outage: Outage
    until: int
    """Down so long, in steps of any life."""
    steps: int
    future: Checkpoint | None
    """One whose record is of a release to come."""

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
        """A step of some life."""
        self.steps += 1
        self.outage.down = self.steps < self.until

    def begin(self, plan: Plan, workers: int, past: OverrideHistory) -> None:
        self.until, self.outage.down = 0, False
        for topic in self.topics:
            topic.lose()
        self.turn.passing("life", "begin", lambda: DurableWorld.begin(self, plan, workers, past))
        if self.before is not None and self.before is self.future:
            Checkpoint.from_bytes(of_the_next_version(self.before.to_bytes()))

    def write(self, life: ExecutionId, decision: Decision) -> Callable[[], bool]:
        durable = self.turn.passing(
            "decision", "write", lambda: DurableWorld.write(self, life, decision)
        )
        return self._flushing("decision", durable)

    def taking(
        self, plan: Plan, links: Links, clock: SimClock, durable: Callable[[], bool]
    ) -> CheckpointCoordinator:
        watch_links(links, self.turn)
        up = lambda: durable() and not self.outage.down  # noqa: E731
        taking = super().taking(plan, links, clock, up)
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
    """Its first byte is the version of its format."""
    return bytes([record[0] + 1]) + record[1:]


def watch_links(links: Links, turn: Turn) -> None:
    """What a member sends are steps from now on."""
    send = links.send

    def sending(peer: WorkerId, frame: Frame) -> None:
        turn.passing(*sent(frame), lambda: send(peer, frame))

    _replace(links, "send", sending)


def sent(frame: Frame) -> tuple[Protocol, Action]:
    """What it is to send a frame, by its head alone."""
    kind = frame[0][:1]
    if kind == DATA:
        _, _, payload, _ = msgpack.unpackb(frame[0][1:])
        return _SENT.get(payload, ("command", "send"))
    return ("marker" if kind == CUT else "link"), "send"


_SENT: dict[str, tuple[Protocol, Action]] = {
    "Batch": ("link", "send"),
    "Delivery": ("bin", "hand over"),
    "Parcel": ("partition", "hand over"),
}


def watch_worker(worker: Worker, turn: Turn) -> None:
    """What a worker does in its turns are steps from now on."""
    step, parts = worker.step, assembly(worker)

    def stepping() -> bool:
        turn.process = worker.me
        try:
            return step()
        finally:
            turn.process = COORDINATOR

    _replace(worker, "step", stepping)
    for outlet in parts.outlets:
        _watch(outlet.keyed.trace, "adopt", turn, "installation", "install")
        _watch(outlet.keyed.trace, "release", turn, "bin", "forget")
    if parts.site.transactions is not None:
        _watch(parts.site.transactions, "commit", turn, "transaction", "begin")


def _watch(owner: object, method: str, turn: Turn, protocol: Protocol, action: Action) -> None:
    call = getattr(owner, method)

    def passing(*words: Any) -> Any:
        return turn.passing(protocol, action, lambda: call(*words))

    _replace(owner, method, passing)


def _replace(owner: object, method: str, by: Callable[..., object]) -> None:
    setattr(owner, method, by)
