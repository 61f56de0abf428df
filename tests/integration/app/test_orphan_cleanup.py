"""I5, I8: what earlier lives have left on Kafka goes, but for what can be gone back to."""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path

from meander.app.recovery.decision_log import to_bytes
from meander.app.recovery.orphan_cleanup import OrphanCleanup
from meander.connectors.kafka.client import Settings, admin
from meander.connectors.topics.checkpoints import append
from meander.connectors.topics.control import DecisionTopic
from meander.connectors.topics.internal_topics import TopicNames, ensure_internal
from meander.connectors.topics.state import KafkaStateTopic
from meander.connectors.topics.tombstones import end_offsets
from meander.dataflow.control.decisions import Decision, SavepointDecision, StartDecision
from meander.state.checkpoint.checkpoint import Checkpoint, Cut, Piece
from meander.state.checkpoint.delta_bundles import Bundle, bundle_key
from meander.state.checkpoint.in_flight import Header
from meander.state.keys.bins import BinSpace
from meander.state.keys.ids import Bin, ExecutionId, LayerId, WorkerId
from meander.state.layers.manifest import Description, LayerPointer, Manifest
from meander.state.layers.topic import RecordLocation
from meander.state.times.time import MIN_TIME
from tests.support.kafka.brokers import Broker
from tests.support.kafka.topics import consume_all, until
from tests.support.process.flow_process import flow_folder, lines, meander

FIRST, SECOND, THIRD, FOURTH = map(ExecutionId, (1, 2, 3, 4))
ONE = WorkerId(1)


@dataclass
class Flow:
    """The topics of a flow that nobody runs."""

    settings: Settings
    names: TopicNames
    numbers: dict[ExecutionId, int] = field(default_factory=dict)

    def lives(self, life: ExecutionId, savepoint: str = "") -> Checkpoint:
        """What a life writes for a checkpoint: a layer, records in flight, a bundle."""
        number = self.numbers[life] = self.numbers.get(life, 0) + 1
        layer = LayerId(life, ONE, number)
        pointer = LayerPointer(
            layer, Description(MIN_TIME, 0, MIN_TIME), "base", 1, 0, "msgpack",
            (self.put(self.names.state, layer.key(0)),),
        )  # fmt: skip
        header = Header(life, number, ONE, "sink", 0, 0)
        flying = self.put(self.names.in_flight, header.key)
        piece = Piece("sink", 0, ONE, MIN_TIME, 1, (flying,), keyed=False)
        bundle = self.put(self.names.in_flight, bundle_key(life, number, ONE, 0))
        cut = Cut(members=(ONE,), pieces=(piece,), bundles=(Bundle("n", (Bin(0),), bundle),))
        manifests = (Manifest("n", Bin(0), 0, (pointer,)),)
        return Checkpoint(number, life, BinSpace(1), 0, manifests, cut, savepoint)

    def put(self, topic: str, key: bytes) -> RecordLocation:
        with closing(KafkaStateTopic(self.settings, topic, 1, threading.Event())) as opened:
            ticket, found = opened.append(key, b"state"), list[RecordLocation]()

            def placed() -> bool:
                place = opened.appended(ticket)
                found.extend([] if place is None else [place])
                return bool(found)

            until(placed, "it is durable")
        return found[0]

    def take(self, checkpoint: Checkpoint) -> int:
        return append(self.settings, self.names, checkpoint)

    def decide(self, life: ExecutionId, decision: Decision) -> None:
        with closing(DecisionTopic(self.settings, self.names.decisions)) as decisions:
            decisions.write(to_bytes(life, decision))

    def begin(
        self,
        life: ExecutionId,
        checkpoint: int | None,
        retained: int = 3,
        oldest: int | None = None,
    ) -> None:
        self.decide(life, StartDecision(0, (ONE,), 1, checkpoint, retained=retained, oldest=oldest))

    def records(self) -> list[tuple[bytes | None, bytes | None]]:
        bootstrap = self.settings["bootstrap.servers"]
        topics = self.names.in_flight, self.names.state
        return [(one.key, one.value) for topic in topics for one in consume_all(bootstrap, topic)]

    def kept(self) -> set[bytes | None]:
        """The keys of what compaction leaves."""
        return {key for key, value in dict(self.records()).items() if value is not None}

    @property
    def lying(self) -> dict[str, list[int]]:
        topics = self.names.in_flight, self.names.state
        return {topic: end_offsets(self.settings, topic) for topic in topics}

    def sweep(
        self, life: ExecutionId, before: Checkpoint | None, lying: dict[str, list[int]]
    ) -> None:
        with closing(OrphanCleanup(self.settings, self.names, life, before, lying)) as sweep:
            sweep._run()


def keys(*checkpoints: Checkpoint) -> set[bytes | None]:
    return {place.key for one in checkpoints for place in (*one.locations, *one.chunks)}


def test_orphans_leave_both_topics_and_all_other_records_stay(broker: Broker, prefix: str) -> None:
    settings = {"bootstrap.servers": broker.bootstrap}
    flow = Flow(settings, ensure_internal(admin(settings), prefix, "flow"))
    foreign = flow.put(flow.names.state, b"foreign")

    flow.begin(FIRST, None, retained=2)
    flow.take(flow.lives(FIRST))
    named = flow.lives(FIRST, "named")
    flow.decide(FIRST, SavepointDecision("named", flow.take(named), 0))
    begun = flow.take(flow.lives(FIRST))

    flow.begin(SECOND, begun, retained=2)
    earlier = flow.lives(SECOND)
    flow.take(earlier)
    before = flow.lives(SECOND)
    # Not all that the flow goes on from is of the life that has taken it.
    inherited = flow.lives(FIRST)
    before = replace(before, manifests=inherited.manifests)
    begun = flow.take(before)
    flow.lives(SECOND)

    lying = flow.lying
    flow.begin(THIRD, begun, retained=2, oldest=begun - 1)
    late = flow.lives(SECOND, "late")
    flow.decide(SECOND, SavepointDecision("late", flow.take(late), 0))
    own = flow.lives(THIRD)
    # Of another host, whose clock is behind: its number says nothing.
    later = flow.lives(ExecutionId(0))

    flow.sweep(THIRD, before, lying)
    assert flow.kept() == {foreign.key} | keys(named, earlier, before, late, own, later)
    lying = flow.lying
    flow.begin(FOURTH, begun, retained=2, oldest=begun - 1)
    flow.sweep(FOURTH, before, lying)
    assert flow.kept() == {foreign.key} | keys(named, earlier, before)
    tombs = Counter(key for key, value in flow.records() if value is None)
    assert {*tombs.values()} == {1}, "nothing gets a second tombstone"


def test_an_execution_without_a_checkpoint_deletes_all_earlier_records(
    broker: Broker, prefix: str
) -> None:
    settings = {"bootstrap.servers": broker.bootstrap}
    flow = Flow(settings, ensure_internal(admin(settings), prefix, "flow"))
    flow.begin(FIRST, None)
    flow.lives(FIRST)
    lying = flow.lying
    flow.begin(SECOND, None)
    own = flow.lives(SECOND)
    with closing(OrphanCleanup(settings, flow.names, SECOND, None, lying)) as sweep:
        sweep.start()
        until(lambda: flow.kept() == keys(own), "it goes, beside all else")


def test_a_flow_that_runs_sweeps(broker: Broker, prefix: str, tmp_path: Path) -> None:
    module = flow_folder(tmp_path / "flow", prefix)
    lines(broker.bootstrap, prefix, ["a b", "b"])
    settings = {"bootstrap.servers": broker.bootstrap}
    flow = Flow(settings, ensure_internal(admin(settings), prefix, "counts"))
    left = flow.lives(FIRST)
    assert flow.kept() == keys(left)
    run = ["run", str(module), "--prefix", prefix, "--workers", "1"]
    with meander(tmp_path, broker.bootstrap, *run) as running:
        running.until_event("started")
        until(lambda: not flow.kept() & keys(left), "what was left has gone")
