"""Test a flow on simulated workers, in one process and without Kafka or Spark.

Guarantees that the flow is the user's own, unchanged: its sources and sinks read and write topics
in memory through their real formats, and everything between is the engine. Simulated are the clock,
the network, the state topic and the order of turns. A run is a function of its flow, its records,
its seed and its faults (`meander.testing`). A failure names the arguments that repeat it.

>>> from meander import KafkaSink, KafkaSource
>>> from meander import Flow
>>> flow = Flow("counts")
>>> words = flow.source(KafkaSource("lines", value="str")).flat_map(str.split)
>>> counts = words.key_by(lambda word: word).fold("count", lambda: 0, lambda n, w: (n + 1, [w, n]))
>>> counts.sink(KafkaSink("counts"))
>>> with TestFlow(flow, workers=2, seed=7) as run:
...     run.feed("lines", "to be or", "not to be")
...     run.run()
>>> run.values("counts")
[['to', 0], ['be', 0], ['or', 0], ['not', 0], ['to', 1], ['be', 1]]
"""

from __future__ import annotations

import json
import random
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Literal, Self

from msgspec import to_builtins

from meander.connectors.custom.sink import Sink
from meander.connectors.custom.source import Source
from meander.connectors.kafka.sink.sink import KafkaSink
from meander.connectors.kafka.source.source import KafkaSource, assigned, source_topics
from meander.connectors.testing.answers import Answer
from meander.connectors.testing.custom import PartWriter, SimulatedReader
from meander.connectors.testing.dead_letter_places import placed_in
from meander.connectors.testing.in_memory import (
    POLL_SIZES,
    Headers,
    TopicReader,
    TopicRecord,
    TopicWriter,
)
from meander.connectors.testing.in_memory_topics import Feed, Idle, InMemoryTopics
from meander.connectors.testing.keyed_states import KeyedStates
from meander.dataflow.api.dead_letters import DeadLetterCount
from meander.dataflow.api.expansion import composites, part_name
from meander.dataflow.api.flow import Flow
from meander.dataflow.api.nodes import Node, SinkNode, SourceNode
from meander.dataflow.api.plan import Plan
from meander.dataflow.checkpoint.initial_state import write
from meander.dataflow.control.colocation import DEFAULT_GROUP
from meander.dataflow.control.command import MoveBins, SwitchLogic
from meander.dataflow.control.resources import ANYWHERE, Resources
from meander.dataflow.control.timestamp_overrides import NO_OVERRIDES, OverrideHistory
from meander.dataflow.coordinator.rescaler import Rescaler
from meander.dataflow.errors import KILLED, WorkerLost
from meander.dataflow.interfaces import Readers, Rests, SinkWriter, SourceReader
from meander.dataflow.keepalive import NO_KEEPALIVE
from meander.dataflow.metrics.counters import added
from meander.dataflow.operators.keyed.operator import KeyedOperator
from meander.dataflow.records.loop_times import outer_time
from meander.dataflow.runtime.operator_factory import WorkerEnvironment
from meander.dataflow.runtime.worker import Worker
from meander.dataflow.simulation.event_loop import SimulatedEventLoop
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
    ListDeadLetters,
    ListSink,
    ListSource,
    Result,
)
from meander.dataflow.simulation.simulator import (
    NOW_MS,
    AddPartition,
    Command,
    DurableWorld,
    SimClock,
    SimLinks,
    SimTopic,
    Simulation,
    simulate,
)
from meander.dataflow.simulation.transactions import (
    InMemoryWriter,
    ListTransactions,
    OutboxWriter,
    TransactionalWriter,
)
from meander.dataflow.simulation.worker_pool import SimulatedPool
from meander.schemas import control
from meander.schemas.control import CommandError, parse_command
from meander.schemas.errors import MeanderError, SetupError
from meander.schemas.status import CommandRejected, Event, Left
from meander.state.checkpoint.checkpoint import Checkpoint
from meander.state.encoding import codec
from meander.state.encoding.named_types import use
from meander.state.keys.ids import COORDINATOR, ExecutionId, WorkerId, member_name
from meander.state.store.spill import SpillStore
from meander.state.store.store import Databases
from meander.state.times.time import MIN_TIME, to_millis

Expectation = Literal["read", "allow"]
"""What a test expects of dead letters: it reads all of them, or may leave some unread."""
IDLE_STEPS = 250
"""The steps without a change after which a flow counts as at rest."""
AFTER_CRASH = (
    "a TestFlow does not recover: check its results so far, or start another TestFlow, which"
    " starts from scratch"
)
"""The remedy for a run that a `Crash` has ended."""


class TestFlow:
    """A test flow that runs a user's flow on simulated workers. Each topic has `partitions`;
    `topics` are those that a pattern of a source may match, and `states` the initial states by
    operator and key.

    A test fails at its end where the flow gave dead letters that the test has not read by
    `dead_letters`. With `dead_letters="allow"` it may leave them unread.

    Times are milliseconds since 1970. A test feeds topics before or between `run_until_idle`,
    `advance` and `run`. It may read results at any time, and keyed state while no bin moves. A
    `Crash` ends the run with its error, also where the flow takes checkpoints: results stay
    readable, and every later step raises the error again. Tests of the engine read lists
    (`ListSource`), script `commands`, and reuse the `world` of a flow.

    >>> from meander import KafkaSink, KafkaSource
    >>> from meander import Flow
    >>> flow = Flow("sums", bins=2)
    >>> sums = flow.source(KafkaSource("in")).key_by(lambda v: v % 2)
    >>> sums.fold("sum", lambda: 0, lambda s, v: (s + v, s + v)).sink(KafkaSink("out"))
    >>> with TestFlow(flow, faults=[At(Raise("sum"), records=2)]) as run:
    ...     run.feed("in", 1, 2, b"{oops")
    ...     run.run_until_idle()
    ...     run.control({"type": "migrate", "id": "m1", "bins": "all", "worker": 1})
    ...     run.feed("in", 3, 4)
    ...     run.run()
    ...     letters = run.dead_letters
    >>> [letter.operator for letter in letters], run.answer("m1").state
    (['source in', 'sum'], 'completed')
    """

    __test__ = False

    def __init__(
        self,
        flow: Flow,
        workers: int = 2,
        seed: int = 0,
        *,
        partitions: int = 2,
        topics: Sequence[str] = (),
        dead_letters: Expectation = "read",
        faults: Sequence[At] = (),
        states: Mapping[str, Mapping[object, object]] | None = None,
        commands: Sequence[Command] = (),
        databases: Databases | None = None,
        namespace: int = 0,
        past: OverrideHistory = NO_OVERRIDES,
        world: DurableWorld | None = None,
    ) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="meander-test-")
        self._own = Databases(self._folder.name, 8 << 20) if databases is None else None
        self._databases = self._own or databases
        self._namespace, self._count = namespace, workers
        self._rng = random.Random(seed)
        self._repeat = (
            f"workers={workers}, seed={seed}, faults={[*faults]!r}, partitions={partitions}"
        )
        self._topics = InMemoryTopics(partitions, lambda: self.sim.actions)
        self._injector, self._pending = FaultInjector(), PendingFaults([*faults])
        self._failure: MeanderError | None = None
        self._dead_letters: list[DeadLetter] = []
        self._expectation, self._read_letters = dead_letters, 0
        """What a test expects of dead letters, and how many it has read."""
        self._letter_count = DeadLetterCount(flow.name, flow.dead_letters)
        self._dead: dict[WorkerId, ListDeadLetters] = {}
        """The dead letters of each worker, which share the list."""
        self._types = flow.named_types
        use(self._types)
        names = (part_name(name, topic) for name in composites(flow.nodes) for topic in topics)
        self._plan = Plan(self._injector.instrument(flow), [*names])
        _check_formats(self._plan.nodes)
        self._placed = placed_in(self._plan, self._topics.original)
        self.world = world or DurableWorld.empty(self._rng)
        """The topics that the next execution of the flow finds."""
        if states:
            self._write_states(states)
        self.resources: dict[WorkerId, Resources] = {}
        """The resources of workers that a plan gives more than a place."""
        self.sim: Simulation = simulate(
            self._plan, workers, self._rng, self._build, self.world, commands, past
        )
        self._rescaler = Rescaler(
            self.sim.coordinator,
            SimulatedPool(self.sim, self.resources),
            self.sim.clock,
            slots=None,
        )
        self._commands = self._noted = 0
        """The number of records on the control topic, and of events noted by the rescaler."""
        self._fire_timers = True
        self._closed = False
        """Whether the block of the run has ended, and the states with it."""
        self._giving = False
        """Whether the flow runs steps now so that it can accept a command, or a worker joins."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        unread = self._dead_letters[self._read_letters :]
        if error is not None:
            error.add_note(
                f"The failure occurred at step {self.sim.actions} of {type(self).__name__}(flow,"
                f" {self._repeat}). A run with these arguments repeats it."
            )
        self._closed = True
        for worker in self.workers:
            worker.close()
        if self._own is not None:
            self._own.close()
        self._folder.cleanup()
        if error is None and unread and self._expectation == "read":
            raise AssertionError(_unread(unread))

    # -- actions

    def feed(
        self,
        topic: str,
        *values: object,
        key: object = None,
        ms: int | None = None,
        partition: int = 0,
        headers: Headers = (),
    ) -> None:
        """Put records onto a topic that the flow reads; see `Feed`."""
        for value in values:
            self.inject(Feed(topic, value, key, ms, partition, headers))

    def run(self, *, fire_timers: bool = True) -> None:
        """Inject all faults, end the topics, and run the flow to its end. Raise AssertionError
        where it does not end or a fault is never due, and the error that ends the flow.

        The end fires all timers, so a test sees the last windows. With `fire_timers=False` it fires
        those up to the last record, as `meander run --until-end` does without `--fire-timers`.
        """
        self._fire_timers = fire_timers
        if not all(isinstance(one.spec, ListSource) for one in self._plan.sources):
            self.run_until_idle()
            while self._pending.left:
                self._advance_to_fault()
                self.run_until_idle()
            self._topics.ended = True
        self.sim.actions_before = self.sim.actions
        while not self.sim.done:
            self.act()
        self.sim.collect()
        self._rescale()
        left = self._pending.left
        assert not left, f"the flow ended before {left[0]} was due"

    def run_until_idle(self) -> None:
        """Run until the flow is at rest, as far as possible without much time. A test may feed more
        records then."""
        self.sim.actions_before = self.sim.actions
        while True:
            before = self._activity()
            for _ in range(IDLE_STEPS):
                self.act()
            if before == self._activity():
                if self._is_quiescent:
                    return
                # Running work waits for time to pass.
                self.sim.clock.advance(min(worker.wait_seconds() for worker in self.workers))

    def advance(self, seconds: float) -> None:
        """Run until the flow is idle, let time pass, and run until it is idle again."""
        self.run_until_idle()
        self.sim.clock.advance(seconds)
        self.run_until_idle()

    def act(self) -> None:
        """Inject the faults that are due, then run one step of the schedule."""
        if self._failure is not None:
            raise self._failure
        # Another flow of this process may have run since.
        use(self._types)
        if self._pending.left:
            now = self.sim.actions, self.sim.clock.monotonic(), self._read
            for at in self._pending.due(*now, submitting=self._giving or self._rescaler.starting):
                self.inject(at.fault)
        self.sim.act()
        self._rescale()
        try:
            self._letter_count.note(len(self._dead_letters), self.sim.clock.monotonic())
        except MeanderError as error:
            self._failure = error
            raise

    def inject(self, fault: Fault | Command) -> None:
        """Inject a fault, or submit a command, now. Raise SetupError where it does not fit the
        flow."""
        match fault:
            case Feed():
                self._topics.feed(fault, self.sim.clock.now_ms())
            case Idle():
                self._topics.pause(fault)
            case AddPartition(name, records) if not self._is_list(name):
                self._grow(name, records)
            case Control(command):
                self.control(command)
            case Fault():
                self._disturb_workers(fault)
            case _:
                self._submit(fault)

    def control(self, command: Mapping[str, object] | bytes) -> None:
        """Put a command on the control topic, as any producer would."""
        data = command if isinstance(command, bytes) else _written(command)
        space, name = self._plan.flow.space, ""
        self._commands += 1
        try:
            parsed = parse_command(data, space.count)
            name = parsed.id
            self._rescaler.expect_fresh(name)
            match parsed:
                case control.Rescale():
                    self._rescaler.enqueue(parsed, self._commands)
                case control.ApplyPlan(dry_run=True):
                    self._report([self._rescaler.compare(parsed, self._commands)])
                case control.ApplyPlan():
                    self._rescaler.enqueue(parsed, self._commands)
                case control.Abort(command=other):
                    self._report(self._rescaler.abort(other, name))
                case control.ChangeLogic():
                    self._submit(SwitchLogic.from_command(parsed, self._commands))
                case control.Migrate():
                    moves = MoveBins.from_command(parsed, space, self._commands)
                    self._rescaler.expect_to_stay(moves)
                    self._submit(moves)
        except CommandError as error:
            name = error.command or name
            self.sim.events.append(CommandRejected(name, self._commands, str(error)))
        self.sim.collect()
        self._await_workers()

    # -- results

    @property
    def events(self) -> list[dict[str, object]]:
        """Return the events of all commands in the form of the status topic. The offset of a
        command is its number."""
        return [to_builtins(event) for event in self.sim.events]

    @property
    def workers(self) -> list[Worker]:
        """Return the workers."""
        return self.sim.workers

    @property
    def counters(self) -> Counter[str]:
        """Return the sums of all workers' counters since the start: records read, unreadable,
        written, late (`late_adjusted`), future, dead letters and skipped. `late_most_ms` is the
        greatest delay of a late record."""
        return added(self.sim.counters, *(worker.counters for worker in self.workers))

    @property
    def dead_letters(self) -> list[DeadLetter]:
        """Return the dead letters in order, which count as read from now on. The `value` of an
        unreadable record is its bytes."""
        self._read_letters = len(self._dead_letters)
        return [*self._dead_letters]

    def values(self, topic: str) -> list[object]:
        """Return the values that the flow has written to a topic, decoded, in the flow's total
        order.

        Records of one millisecond on several partitions have no order that all seeds share.
        """
        return [result.value for result in self.results(topic)]

    def results(self, topic: str) -> list[Result]:
        """Return the results with partition, offset, key and worker of each. A value that a
        function encoded remains bytes."""
        return sorted(self._topics.topic(topic).results, key=lambda result: result.place)

    def records(self, topic: str) -> list[TopicRecord]:
        """Return all records of a topic in their order."""
        return list(self._topics.topic(topic).records)

    def answer(self, id: str) -> Answer | None:
        """Return the answer to a command; None where no event names it.

        A repeated id returns the answer to its first command; `events` also holds the rejection.
        """
        return Answer.of(id, self.sim.events)

    def frontier(self, name: str) -> int | None:
        """Return the frontier of a probe or sink in milliseconds since 1970; None once no record
        can arrive."""
        frontiers = self.sim.coordinator.frontiers()
        if name not in frontiers:
            raise SetupError(f"probe {name!r}", "the flow has none of that name",
                             f"name one of {', '.join(frontiers)}")  # fmt: skip
        least = min(map(outer_time, frontiers[name]), default=None)
        return None if least is None else to_millis(least)

    def states(self, operator: str) -> KeyedStates:
        """Return the state of each key of a stateful operator. The mapping also finds keys that no
        dict takes, such as lists and dicts.

        A state has the form that the next records meet: it is upgraded here where a change of logic
        upgrades states, and no record has touched its key since. A key whose time to live has ended
        at the time of the newest record read has none. Raises SetupError for another operator, and
        behind the block of the run.
        """
        known = [node.name for node in self._plan.keyed]
        if operator not in known:
            raise SetupError(
                f"operator {operator!r}", "the flow has no stateful operator of that name",
                f"name one of {', '.join(known)}",
            )  # fmt: skip
        use(self._types)
        encoded = self.state().get(operator, {})
        operators = (worker.parts.operators.nodes[operator] for worker in self.workers)
        keyed = next(one for one in operators if isinstance(one, KeyedOperator))
        # An open window's key has another form than `encode_key` gives.
        keys = (codec.encode_key(codec.decode(key)) for key in encoded)
        states = map(keyed.decode, encoded.values())
        return KeyedStates(dict(zip(keys, states, strict=True)), self._types)

    def state(self) -> dict[str, dict[bytes, bytes]]:
        """Return all keyed state, encoded, without expired states. Raise AssertionError when two
        workers hold a key (I2) while no bin moves."""
        if self._closed:
            raise SetupError(
                f"TestFlow of flow {self._plan.flow.name!r}", "its states end with its block",
                "read states within `with TestFlow(...) as run:`",
            )  # fmt: skip
        whole: dict[str, dict[bytes, bytes]] = {}
        now = max((worker.furthest for worker in self.workers), default=MIN_TIME)
        for worker in self.workers:
            for operator, states in worker.state(now).items():
                known = whole.setdefault(operator, {})
                assert not known.keys() & states.keys(), "one key's state is on two workers (I2)"
                known.update(states)
        return whole

    def owner(self, key: object, operator: str = DEFAULT_GROUP) -> int:
        """Return the owner of a key after all decided moves: in an operator with its own moves, or
        in all operators that move together."""
        bin = self._plan.flow.space.bin_of(codec.encode_key(key))
        return self.sim.coordinator.owners()[self._plan.groups.number(operator, bin)]

    # -- inside

    @property
    def _is_quiescent(self) -> bool:
        """Return whether no fault delays the flow and no started work is pending."""
        return self.sim.calm and self._topics.is_quiescent

    @property
    def _read(self) -> int:
        """Return the number of records read so far, including unreadable records."""
        counters = self.counters
        return counters["read"] + counters["unreadable"]

    def _activity(self) -> tuple[object, ...]:
        """Return all values that change while a flow has work."""
        coordinator = self.sim.coordinator
        inflight = [worker.inflight for worker in self.workers]
        return self.counters, inflight, len(self.sim.events), coordinator.frontiers()

    def _advance_to_fault(self) -> None:
        """Advance a flow at rest to the next fault."""
        left = self._pending.left
        waits = [at.seconds for at in left if at.seconds is not None]
        steps = [at.step for at in left if at.step is not None]
        if waits:
            clock = self.sim.clock
            clock.advance(max(0.0, min(waits) - clock.monotonic()))
        elif steps:
            self.sim.actions_before = self.sim.actions
            while self.sim.actions < min(steps):
                self.act()
        else:
            raise AssertionError(
                f"{left[0]} is never due, as only {self._read} records have been read"
            )

    def _is_list(self, source: str) -> bool:
        return any(
            node.name == source and isinstance(node.spec, ListSource) for node in self._plan.sources
        )

    def _grow(self, source: str, records: Sequence[tuple[int, object]]) -> None:
        """Add a partition with these records to the topic of a source."""
        topics = source_topics(self._plan.sources)
        if source not in topics:
            raise SetupError(f"source {source!r}", "the flow has none of that name",
                             f"name one of {', '.join(topics)}")  # fmt: skip
        name = topics[source]
        partition = self._topics.topic(name).grow()
        for ms, value in records:
            self.inject(Feed(name, value, ms=ms, partition=partition))

    def _submit(self, command: Command) -> None:
        """Submit a command once the flow is ready for it, and wait for a joining worker."""
        if isinstance(command, MoveBins | SwitchLogic) and self._rescaler.must_wait(command):
            self._rescaler.enqueue(command, command.offset)
            self._await_workers()
            return
        self._giving = True
        while not self.sim.coordinator.ready:
            self.act()
        next_worker = self.sim.next_worker
        self.sim.submit(command)
        while (
            self.sim.next_worker > next_worker
            and next_worker not in self.sim.coordinator.workers.active
        ):
            self.act()
        self._giving = False

    def _await_workers(self) -> None:
        """Run the flow until the next command has started and its joining workers have joined."""
        while self._rescaler.starting and not self._giving:
            self.act()

    def _rescale(self) -> None:
        """Let the rescaler note new events of the engine, and take its next step."""
        self._rescaler.next_id = max(self._rescaler.next_id, self.sim.next_worker)
        new = self.sim.events[self._noted :]
        self._noted = len(self.sim.events)
        for event in new:
            self._rescaler.note(event)
        if not self._giving:
            self._report(self._rescaler.step())

    def _report(self, events: Iterable[Event]) -> None:
        """Add events of the rescaler, except those that the engine has reported already."""
        self.sim.events += (event for event in events if not isinstance(event, Left))

    def _disturb_workers(self, fault: Fault) -> None:
        match fault:
            case Pause(worker, steps):
                self.sim.pauses[self._member(worker)] = self.sim.actions + steps
            case Slow(sender, receiver, steps):
                link = self._member(sender), self._member(receiver)
                self.sim.slowed[link] = self.sim.actions + steps
            case Crash(worker):
                self._failure = WorkerLost(member_name(self._member(worker)), KILLED, AFTER_CRASH)
                raise self._failure
            case Raise(operator, calls):
                self._injector.arm(operator, calls)
            case Jump(seconds):
                self.sim.clock.jump(seconds)
            case _:
                raise SetupError(f"fault {fault}", "simulated workers do not support it",
                                 "use one of meander.testing")  # fmt: skip

    def _member(self, number: int) -> WorkerId:
        known = [COORDINATOR, *(worker.me for worker in self.workers)]
        if number not in known:
            raise SetupError(f"worker {number}", "it is no worker of the flow",
                             f"name one of {', '.join(map(str, known[1:]))}")  # fmt: skip
        return WorkerId(number)

    def _reader(
        self, node: SourceNode, me: WorkerId, rests: Rests | None, readers: Readers
    ) -> SourceReader:
        match node.spec:
            case ListSource() as source:
                if rests is not None:
                    return source.resumed(rests, self._rng)
                return source.reader(me, self._count, self._rng, readers)
            case KafkaSource(topic=str(topic)) as source:
                assert rests is None, "topics in memory do not outlive their flow"
                self._topics.sources.setdefault(topic, source)
                return TopicReader(
                    self._topics.open(topic),
                    assigned(topic, self._topics.partitions, me, self._count, readers),
                    source.chunk_reader(self._dead[me], NO_KEEPALIVE),
                    self._rng,
                    partial(self._topics.paused, topic),
                    lambda: self._topics.ended,
                    self._readable_records,
                )
            case Source() as source:
                assert rests is None, "no simulated flow restarts"
                return SimulatedReader(
                    source,
                    lambda count: assigned(source.label, count, me, self._count, readers),
                    self._dead[me],
                    self._rng,
                    lambda: self._topics.ended,
                    self._readable_records,
                )
        raise SetupError(f"source {node.name!r}", "simulated workers cannot read it",
                         "use a KafkaSource or a subclass of Source")  # fmt: skip

    def _readable_records(self) -> int:
        """Return how many records the flow may read before a fault is due."""
        waits = [at.records for at in self._pending.left if at.records is not None]
        return min(waits) - self._read if waits else POLL_SIZES[-1]

    def _writer(self, node: SinkNode, me: WorkerId) -> InMemoryWriter:
        match node.spec:
            case Sink() as sink:
                return PartWriter(sink, me, self._rng)
            case ListSink() as sink:
                return sink.writer(me, self._rng)
            case KafkaSink() as sink:
                return TopicWriter(
                    sink, self._topics.open, me, self._rng, lambda: self.sim.clock.now_ms()
                )
        raise SetupError(f"sink {node.name!r}", "simulated workers cannot write it",
                         "use a KafkaSink or a subclass of Sink")  # fmt: skip

    def _write_states(self, states: Mapping[str, Mapping[object, object]]) -> None:
        """Start the flow from these states, as from a bootstrap."""
        manifests = tuple(write(self._plan, states, self.world.state, NOW_MS))
        space = self._plan.flow.space
        self.world.checkpoints.append(Checkpoint(1, ExecutionId(0), space, 0, manifests))

    def _build(
        self, me: WorkerId, links: SimLinks, clock: SimClock, topic: SimTopic, joins: bool
    ) -> Worker:
        assert self._databases is not None
        database = self._databases.of(me)
        chance = random.Random(f"dead letters {me}")
        dead = self._dead[me] = ListDeadLetters(self._dead_letters, chance, self._placed)
        once = self._plan.flow.delivery == "exactly_once"
        transactions = ListTransactions(self.world.ledger) if once else None

        def opened(node: SinkNode) -> SinkWriter:
            writer = self._writer(node, me)
            if transactions is None:
                return writer
            once = OutboxWriter if node.name in self._plan.outboxes else TransactionalWriter
            return once(transactions, writer)

        site = WorkerEnvironment(
            me,
            self._count,
            clock,
            topic,
            dead,
            lambda name, *how: database.store(f"{self._namespace}/{name}", *how),
            lambda name: SpillStore(database, f"{self._namespace}/{name}"),
            lambda node, rests, readers: self._reader(node, me, rests, readers),
            opened,
            self.world.execution,
            self.world.start,
            self.world.in_flight,
            lambda: SimulatedEventLoop(clock),
            joins=joins,
            fires_timers=lambda: self._fire_timers,
            transactions=transactions,
            memory=self.resources.get(me, ANYWHERE).memory,
        )
        return Worker(self._plan, site, links)


def _unread(letters: Sequence[DeadLetter]) -> str:
    """Describe dead letters that a test has not read."""
    first = letters[0]
    many = "1 dead letter was" if len(letters) == 1 else f"{len(letters):,} dead letters were"
    return (
        f"{many} not read; the first one is of operator {first.operator!r}: {first.reason}. Read"
        ' `dead_letters` of the TestFlow within its block, or give it dead_letters="allow".'
        + (f"\n{first.trace}" if first.trace else "")
    )


def _check_formats(nodes: Sequence[Node]) -> None:
    """Prepare the formats of a flow, as a start does. Raise SetupError where one cannot work."""
    for node in nodes:
        if isinstance(node, SourceNode | SinkNode) and isinstance(
            node.spec, KafkaSource | KafkaSink
        ):
            for form, place in node.spec.formats:
                form.check(place)


def _written(command: Mapping[str, object]) -> bytes:
    try:
        return json.dumps(command).encode()
    except (TypeError, ValueError) as error:
        raise SetupError(
            f"command {command!r}",
            f"it cannot be written as JSON ({error})",
            "pass texts, numbers and lists, or encoded bytes",
        ) from error
