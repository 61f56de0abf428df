"""One operator alone on a bench: its ports, its error policy, and records to feed it with."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import count
from random import Random

import numpy as np

from meander.dataflow.backpressure.inflight import InFlightBytes
from meander.dataflow.backpressure.throttle import MoveThrottle
from meander.dataflow.graph.graph import ROOT, Edge, Graph, Location, Scope
from meander.dataflow.metrics.operator_latency import OperatorLatency
from meander.dataflow.operators.buffer.buffer import SpillBuffer
from meander.dataflow.operators.buffer.spill import DiskRows, RowOrder, SpillBudget
from meander.dataflow.operators.context import OperatorContext
from meander.dataflow.operators.error_policy import Guard
from meander.dataflow.operators.keyed.callbacks import CallKind, Calls
from meander.dataflow.operators.keyed.notifications import Notifications
from meander.dataflow.operators.keyed.timers import Timers
from meander.dataflow.operators.ports import InputPort, Message, OutputPort
from meander.dataflow.operators.retries import OnError
from meander.dataflow.progress.progress import Progress
from meander.dataflow.records.batch import Batch, Int64s
from meander.dataflow.records.loop_times import Iterations, passed_frontier
from meander.dataflow.simulation.simulator import SimClock, SimLinks, SimNetwork, SimTopic
from meander.dataflow.wire import Payload
from meander.state.encoding import codec
from meander.state.encoding.codec import PLAIN, StateCodec
from meander.state.encoding.columns import ColumnLayout
from meander.state.keys.bins import BinSpace
from meander.state.keys.ids import ExecutionId, LayerId, WorkerId
from meander.state.layers.retention import Retention
from meander.state.store.spill import SpillStore
from meander.state.store.store import Database, Store
from meander.state.times.antichain import EMPTY_ANTICHAIN, Antichain
from meander.state.times.time import MIN_TIME, Time
from tests.support.state.timers import new_timers


class Bench:
    """One operator's ports on one member: what comes in, what goes out, and what has passed."""

    def __init__(self, inputs: int = 1, scope: Scope = ROOT) -> None:
        """The operator is in a scope, and its records come from the outer one."""
        graph = Graph()
        self._source = graph.node("source", 0, inputs)
        self._operator = graph.node("operator", inputs, 1, scope)
        graph.node("sink", 1, 0, scope)
        for out, at in zip(self._source.outputs, self._operator.inputs, strict=True):
            graph.edge(out, at)
        graph.edge(self._operator.outputs[0], graph.nodes[2].inputs[0])
        self.graph = graph
        me = WorkerId(0)
        self.progress = Progress(graph, me, [me], SimLinks(SimNetwork(), me))
        self.inputs = [
            InputPort(at, self.progress, OperatorLatency()) for at in self._operator.inputs
        ]
        self.output = self._port(self._operator.outputs[0], me)
        self._feeds = [self._port(at, me) for at in self._source.outputs]
        self._rights = [feed.open(MIN_TIME) for feed in self._feeds]
        self.sent: list[tuple[WorkerId, Time, Batch]] = []
        self.closed: set[WorkerId] = set()
        """To whom nothing may be sent now."""
        self.progress.flush()

    def put(self, batch: Batch, side: int = 0) -> None:
        """Send a batch to the operator."""
        self._feeds[side].send(self._rights[side], int(batch.times.min()), batch)
        self.progress.flush()

    def pass_to(self, time: int | None, side: int = 0) -> None:
        """Nothing before a time will come on an input any more; None: nothing at all."""
        if time is None:
            self._rights[side].drop()
        else:
            self._rights[side].downgrade(time)
        self.progress.flush()

    def context(
        self,
        buffer: SpillBuffer,
        max_waiting: int = 1 << 30,
        control: Callable[[], Antichain] = Antichain,
    ) -> OperatorContext:
        """The context of an operator all of whose records wait in one buffer."""
        clock, topic = SimClock(), SimTopic(Random(0))
        throttle = MoveThrottle(clock, 1.0, lambda: 1 << 30)
        return OperatorContext(
            name="op",
            me=WorkerId(0),
            clock=clock,
            progress=self.progress,
            control=control,
            counters=Counter(),
            report=lambda _: None,
            inflight=InFlightBytes(1 << 30, throttle.note_passed),
            throttle=throttle,
            topic=topic,
            retention=Retention(topic.delete),
            next_layer=lambda: LayerId(ExecutionId(0), WorkerId(0), 0),
            space=BinSpace(),
            max_waiting=max_waiting,
            fires_timers=lambda: True,
            furthest=lambda: None,
            buffer=lambda _: buffer,
        )

    def take_on(self) -> list[tuple[Time, Batch]]:
        """Take what was sent, as the operator behind does."""
        taken = [(time, batch) for _, time, batch in self.sent]
        (edge,) = (edge for edge in self.graph.edges if edge.source == self.output.location)
        for time, _ in taken:
            self.progress.changes.add(edge.target, time, -1)
        self.sent.clear()
        self.progress.flush()
        return taken

    @property
    def held(self) -> tuple[Time, ...]:
        """What the operator may still send, apart from what may still come."""
        return self.progress._tracker.pointstamps(self._operator.outputs[0]).frontier.times

    def _port(self, at: Location, me: WorkerId) -> OutputPort:
        edges = [edge for edge in self.graph.edges if edge.source == at]
        return OutputPort(at, edges, self.progress, me, self)

    def deliver(self, edge: Edge, to: WorkerId, time: Time, payload: Payload) -> None:
        assert isinstance(payload, Batch)
        for port in self.inputs:
            if port.location == edge.target:
                port.put(Message(time, payload))
                return
        self.sent.append((to, time, payload))

    def blocked(self, edge: Edge, to: WorkerId) -> bool:
        return to in self.closed


@dataclass
class Dead:
    """Dead letters: operator, value, reason and trace."""

    letters: list[tuple[str, object, str, str]] = field(default_factory=list)

    def add(self, operator: str, batch: Batch, row: int, reason: str, trace: str) -> None:
        self.letters.append((operator, batch.values[row], reason, trace))

    @property
    def added(self) -> int:
        return len(self.letters)

    def delivered(self) -> int:
        return self.added

    def has_room(self) -> bool:
        return True


def guard(policy: OnError = "fail", operator: str = "op") -> tuple[Guard, Dead, Counter[str]]:
    """An operator's error policy, and where to look for what it did."""
    dead, counters = Dead(), Counter[str]()
    return Guard(operator, policy, dead, counters), dead, counters


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="meander-test-")


@cache
def _database() -> Database:
    return Database(_folder().name, 8 << 20)


def store(codec_: StateCodec = PLAIN, layout: ColumnLayout | None = None) -> Store:
    """A store of its own."""
    return _database().store(f"store {next(_owners)}", codec_, layout)


def contents(of: Store) -> dict[bytes, object]:
    """All states that a store holds, by encoded key."""
    return {key: codec.decode(data) for bin in of.bins() for key, data in of.scan(bin)}


def pool(order: RowOrder = "arrival", most: int = 1 << 30) -> SpillBuffer:
    """Where records wait, of whose disk `most` bytes are free; none that is refused is there."""
    disk, owner = SpillBudget(most), f"pool {next(_owners)}"

    def overflow(rounds: Iterations) -> DiskRows:
        store = SpillStore(_database(), f"{owner} {rounds}")
        return DiskRows("operator 'op'", rounds, store, disk, order, guard()[0].failed)

    return SpillBuffer(overflow)


_owners = count()


def bins_of(batch: Batch) -> Int64s:
    """The bins of a batch's keys."""
    assert batch.hashes is not None
    return BinSpace().bins_of(batch.hashes)


def calls(
    answers: Sequence[CallKind] = (),
    timers: Timers | None = None,
    notices: Notifications | None = None,
    passed: Antichain = EMPTY_ANTICHAIN,
    rounds: Iterations = (),
    most: int = 1000,
) -> Calls:
    """What a stateful operator calls back in one pass, where a frontier has passed that."""
    of = timers or new_timers(), notices or Notifications()
    until = passed_frontier(passed, rounds)
    return Calls("op", 9, BinSpace(), *of, answers, rounds, until, most, lambda: 0)


def records(
    values: Sequence[object],
    times: Sequence[int] | None = None,
    keys: Sequence[object] | None = None,
    partition: int = 0,
    first_offset: int = 0,
) -> Batch:
    """Records of one partition; times are logical, by default 0."""
    n = len(values)
    zeros = np.zeros(n, np.int64)
    encoded = None if keys is None else [codec.encode(key) for key in keys]
    return Batch(
        zeros if times is None else np.array(times, np.int64),
        zeros,
        zeros + partition,
        np.arange(first_offset, first_offset + n),
        zeros,
        list(values),
        encoded,
        None if encoded is None else BinSpace().hash_keys(encoded),
    )
