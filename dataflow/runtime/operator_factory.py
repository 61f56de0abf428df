"""The operator factory builds one worker's operators from the plan and gives them all they need."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, cast

from meander.dataflow.api.logics import expect_replaces, with_logic
from meander.dataflow.api.nodes import (
    AsyncMapNode,
    ChangesNode,
    CollectionNode,
    EnterNode,
    ExchangeNode,
    ExitNode,
    FeedbackNode,
    FoldLogic,
    IngestNode,
    KeyedNode,
    LoopNode,
    MergeNode,
    Node,
    OperatorNode,
    ProbeNode,
    ProcessLogic,
    SinkNode,
    SourceNode,
    SplitNode,
    StatefulCollectionNode,
    StatefulNode,
    StepsNode,
    TableJoinLogic,
    group_of,
    has_keys,
    scope_of,
)
from meander.dataflow.api.plan import Plan
from meander.dataflow.backpressure.inflight import InFlightBytes
from meander.dataflow.backpressure.throttle import MoveThrottle
from meander.dataflow.checkpoint.restore_plan import RestorePlan
from meander.dataflow.collections.dictionary import Dictionary
from meander.dataflow.control.logic_change import LogicChange
from meander.dataflow.control.logic_timeline import LogicTimeline
from meander.dataflow.control.partition_handoff import PartitionHandoff
from meander.dataflow.control.reports import SendReport
from meander.dataflow.control.routing import Routing
from meander.dataflow.exactly_once.interfaces import ChecksummedWriter, DeferredWriter, Transactions
from meander.dataflow.exactly_once.ordered_sink import OrderedSink
from meander.dataflow.exactly_once.outbox_sink import OutboxSink
from meander.dataflow.graph.graph import ROOT, Edge, Location, Scope
from meander.dataflow.graph.path_summary import Summary
from meander.dataflow.interfaces import (
    Clock,
    DeadLetterTopic,
    DeadLetterWriter,
    Partition,
    Readers,
    Rest,
    Rests,
    SinkWriter,
    SourceReader,
)
from meander.dataflow.joins.interval import IntervalJoin
from meander.dataflow.joins.logic import IntervalLogic
from meander.dataflow.keepalive import NO_KEEPALIVE, Keepalive
from meander.dataflow.logic.changeable import ChangeableLogic
from meander.dataflow.logic.worker_logics import WorkerLogics
from meander.dataflow.migration.incremental_snapshots import Snapshots
from meander.dataflow.migration.migrator import Migrator, Ordered, OutgoingState
from meander.dataflow.migration.partition_migrator import PartitionMigrator
from meander.dataflow.operators.async_map import AsyncCalls, AsyncMap, EventLoop
from meander.dataflow.operators.buffer.buffer import SpillBuffer
from meander.dataflow.operators.buffer.spill import DiskRows, Refuse, RowOrder, SpillBudget
from meander.dataflow.operators.changeable_steps import ChangeableSteps
from meander.dataflow.operators.context import OperatorContext
from meander.dataflow.operators.custom import OperatorServices, ReadArrangement
from meander.dataflow.operators.error_policy import Guard, SinkDeadLetters
from meander.dataflow.operators.exchange import Exchange
from meander.dataflow.operators.keyed.column_fold import ColumnFold
from meander.dataflow.operators.keyed.columnar import Columnar
from meander.dataflow.operators.keyed.logic import (
    ExpiringFold,
    Fold,
    Logic,
    Process,
    Sealing,
    Upgrade,
    UpgradingSealing,
)
from meander.dataflow.operators.keyed.operator import KeyedOperator
from meander.dataflow.operators.loop import EndlessLoop, Feedback, LoopEntry
from meander.dataflow.operators.ports import Channels, InputPort, Operator, OutputPort
from meander.dataflow.operators.probe import Probe
from meander.dataflow.operators.retries import OnError, Retries, Retry, fallback
from meander.dataflow.operators.retrying import RetryingOperator
from meander.dataflow.operators.sink import SinkOperator
from meander.dataflow.operators.source.operator import SourceLocations, SourceOperator
from meander.dataflow.operators.source.silence import Silence
from meander.dataflow.operators.split import Split, split_rows
from meander.dataflow.operators.stateless import Step, Steps, step_with
from meander.dataflow.progress.progress import Progress
from meander.dataflow.records.batch import Batch, UInt64s
from meander.dataflow.records.loop_times import Iterations, outer_frontier, outer_time
from meander.dataflow.runtime.worker_memory import WorkerMemory
from meander.dataflow.runtime.worker_metrics import WorkerMetrics
from meander.dataflow.tables.logic import CopiesJoin, TableJoin
from meander.dataflow.windows.columnar import ColumnarWindows
from meander.dataflow.windows.hopping_columns import HoppingColumns
from meander.dataflow.windows.pane_columns import PaneColumns
from meander.dataflow.windows.session_columns import SessionColumns
from meander.dataflow.windows.window import Hopping
from meander.schemas.errors import MeanderError
from meander.state.checkpoint.arrangements import UnreadRows
from meander.state.encoding.codec import StateCodec, UnencodableError
from meander.state.encoding.columns import ColumnLayout
from meander.state.keys.ids import Bin, ExecutionId, LayerId, WorkerId
from meander.state.layers.retention import Retention
from meander.state.layers.topic import StateTopic
from meander.state.store.spill import SpillStore
from meander.state.store.store import Store
from meander.state.times.antichain import Antichain
from meander.state.times.time import END_TIME

if TYPE_CHECKING:
    # This loads numba, which takes half a second that flows without collections do without.
    from meander.dataflow.collections.arrangement import Arrangement

HANDOFF_BYTES = 64 << 10
"""The most bytes of a bin in a handoff without the state topic; less where all bins at once would
exceed `move_memory`."""


def _always() -> bool:
    return True


@dataclass(frozen=True, slots=True)
class WorkerEnvironment:
    """An environment of one worker: all that is opened outside the engine."""

    me: WorkerId
    workers: int
    clock: Clock
    topic: StateTopic
    dead: DeadLetterTopic
    open_store: Callable[[str, StateCodec, ColumnLayout | None, bool], Store]
    open_spill_store: Callable[[str], SpillStore]
    open_reader: Callable[[SourceNode, Rests | None, Readers], SourceReader]
    """Opens a reader at the given positions; None for this worker's share at a start without a
    checkpoint, in which a plan may name readers."""
    open_writer: Callable[[SinkNode], SinkWriter]
    execution: ExecutionId
    start: RestorePlan
    """The restore plan of all workers."""
    in_flight: StateTopic
    """The in-flight topic."""
    open_event_loop: Callable[[], EventLoop]
    """Opens the event loop of the coroutines of this worker."""
    keepalive: Keepalive = NO_KEEPALIVE
    """Keeps the worker alive for the driver while user functions take long."""
    joins: bool = False
    """Whether this worker joins a running flow: it starts empty and receives all state."""
    fires_timers: Callable[[], bool] = _always
    """Returns whether the end of a bounded run fires the timers behind its last record."""
    transactions: Transactions | None = None
    """The transactions of exactly-once delivery; None for at-least-once delivery."""
    memory: int = 0
    """The bytes of memory that the plan gives the worker; 0 for the flow's settings."""


@dataclass(slots=True)
class OperatorFactory:
    """A factory that holds one worker's operators in their scheduling order."""

    plan: Plan
    environment: WorkerEnvironment
    progress: Progress
    channels: Channels
    metrics: WorkerMetrics
    report: SendReport
    counters: Counter[str] = field(default_factory=Counter)
    operators: list[Operator] = field(default_factory=list)
    nodes: dict[str, Operator] = field(init=False)
    """The operators of the user's flow, by name."""
    inputs: dict[Location, InputPort] = field(default_factory=dict)
    exchanges: list[Exchange] = field(default_factory=list)
    outgoing: list[OutgoingState] = field(default_factory=list)
    sources: dict[str, SourceOperator] = field(default_factory=dict)
    ordered_sinks: list[OrderedSink] = field(default_factory=list)
    """The sinks that deliver exactly once in the order of time."""
    order_keepers: dict[str, list[Ordered]] = field(default_factory=dict)
    """The sinks that keep the results of a moving key in order, by colocation group."""
    outboxes: list[OutboxSink] = field(default_factory=list)
    """The sinks that deliver exactly once by checkpoints."""
    retries: list[Retries] = field(default_factory=list)
    """The retries of all operators that have some."""
    async_maps: list[AsyncMap] = field(default_factory=list)
    sink_dead_letters: SinkDeadLetters = field(init=False)
    """The dead letters of the ordered sinks."""
    start: RestorePlan = field(init=False)
    routing: Routing = field(init=False)
    logics: WorkerLogics = field(init=False)
    retention: Retention = field(init=False)
    migrator: Migrator = field(init=False)
    memory: WorkerMemory = field(init=False)
    inflight: InFlightBytes = field(init=False)
    disk: SpillBudget = field(init=False)
    throttle: MoveThrottle = field(init=False)
    _layers: Iterator[int] = field(default_factory=count)
    _arrangements: dict[str, Arrangement] = field(default_factory=dict)
    _dictionary: Dictionary = field(default_factory=Dictionary)
    _event_loop: EventLoop | None = None
    """The event loop of this worker, once an operator has one."""

    def __post_init__(self) -> None:
        flow = self.plan.flow
        joins, groups = self.environment.joins, len(self.plan.groups.names)
        self.sink_dead_letters = SinkDeadLetters(self.environment.dead)
        # A joining worker receives all state from the others.
        self.start = self.environment.start.joining(self.plan) if joins else self.environment.start
        self.routing = (
            Routing.unknown(flow.space, groups) if joins else Routing(flow.space, self.start.owners)
        )
        self.retention = Retention(self.environment.topic.delete)
        self.retention.start_after(self.start.number)
        self.memory = WorkerMemory.of(self.plan, self.environment.memory)
        self.throttle = MoveThrottle(
            self.environment.clock, flow.migration_latency, self._move_memory
        )
        self.inflight = InFlightBytes(
            self.memory.in_flight, self.throttle.note_passed, adapts=flow.max_inflight is None
        )
        self.disk = SpillBudget(flow.max_spill)
        control = self._input(self.plan.migrator.inputs[0])
        self.logics = WorkerLogics(self.plan.home_of, self.report)
        self.nodes = {node.name: self._build(node) for node in self.plan.nodes}
        self.migrator = migrator = Migrator(
            self._context(self.plan.migrator.name),
            control,
            self.outgoing,
            self.exchanges,
            self.routing,
            self.plan.groups,
            self.order_keepers,
            self.logics,
        )
        self.logics.start(self.start.logic_changes)
        context = self._context(self.plan.snapshots.name)
        expiries = {node.name: node.expiry for node in self.plan.keyed if node.expiry is not None}
        snapshots = Snapshots(context, migrator, self.outgoing, flow.snapshot_interval, expiries)
        # The migrator comes first, so operators know every move that the control frontier has
        # passed.
        self.operators = [migrator, self._partition_migrator(), *self.nodes.values(), snapshots]

    def _move_memory(self) -> int:
        """Return this worker's share of the move memory: a move takes memory at both of its
        ends."""
        # The coordinator is a peer, and this worker is not one of its own peers.
        share = self.plan.flow.move_memory // max(2, len(self.progress.peers))
        return min(share, self.memory.moves)

    def _partition_migrator(self) -> PartitionMigrator:
        orders, locations = (
            self._input(self.plan.partition_migrator.inputs[0]),
            self.plan.partition_migrator.outputs,
        )
        outputs = {
            self.plan.origin(source): (self.sources[source.name], self._output_at(output))
            for source, output in zip(self.plan.sources, locations, strict=True)
        }
        return PartitionMigrator(self.environment.me, orders, outputs)

    def close(self) -> None:
        """Close every operator."""
        for operator in self.operators:
            operator.close()
        if self._event_loop is not None:
            self._event_loop.close()

    # -- one builder per kind of node

    def _build(self, node: Node) -> Operator:
        match node:
            case SourceNode():
                return self._source(node)
            case StepsNode():
                return self._steps(node)
            case SplitNode() | AsyncMapNode():
                return self._split(node) if isinstance(node, SplitNode) else self._async_map(node)
            case ExchangeNode():
                return self._exchange(node)
            case KeyedNode():
                return self._keyed(node)
            case SinkNode():
                return self._sink(node)
            case LoopNode() | FeedbackNode():
                return self._loop_end(node)
            case MergeNode() | ProbeNode() | EnterNode() | ExitNode():
                return Probe(self._inputs(node), self._output(node))
            case OperatorNode():
                return self._operator(node)
            case collection:
                return self._collection(collection)

    def _split(self, node: SplitNode) -> Split | RetryingOperator:
        guard, clock = self._guard(node.name, node.on_error), self.environment.clock
        source, outputs = self._inputs(node)[0], self._outputs(node)
        if guard.retries is None:
            named = dict(zip(node.outputs, outputs, strict=True))
            return Split(source, named, node.choose, guard, clock)
        split = partial(split_rows, node.choose, node.outputs, guard)
        return RetryingOperator(source, outputs, split, guard, clock)

    def _steps(self, node: StepsNode) -> Steps | ChangeableSteps | RetryingOperator:
        chain = [(step, self._guard(step.name, step.on_error)) for step in node.steps]
        ports, clock = (self._inputs(node)[0], self._output(node)), self.environment.clock
        if not any(step.name in self.plan.logics for step in node.steps):
            step, guard = chain[0]
            if guard.retries is None:
                return Steps(*ports, chain, clock)
            source, output = ports
            return RetryingOperator(
                source, [output], lambda batch: [step.apply(batch, guard)], guard, clock
            )
        context = self._context(node.name, scope_of(node))
        timed = [(self._step_timeline(node, step), guard) for step, guard in chain]
        return ChangeableSteps(context, *ports, timed)

    def _step_timeline(self, node: StepsNode, step: Step) -> LogicTimeline[Step]:
        timeline = LogicTimeline(step)

        def install(change: LogicChange, _: ChangeableLogic, logic: ChangeableLogic) -> None:
            changed = self.plan.flow.wrap(
                replace(node, steps=(step_with(step, cast(Callable[[Any], Any], logic)),))
            )
            assert isinstance(changed, StepsNode)
            timeline.add(change.time, changed.steps[0])
            timeline.forget_before(self._least_time(node))

        if step.name in self.plan.logics:
            self.logics.add(step.name, partial(expect_replaces, step), install)
        return timeline

    def _async_map(self, node: AsyncMapNode) -> AsyncMap:
        if self._event_loop is None:
            self._event_loop = self.environment.open_event_loop()
        calls = AsyncCalls(node.function, node.concurrency, node.timeout, node.on_error)
        guard = self._guard(node.name, fallback(node.on_error))
        one = AsyncMap(
            self._context(node.name), self._inputs(node)[0], self._output(node), calls, node.order,
            guard, self._event_loop,
        )  # fmt: skip
        self.async_maps.append(one)
        return one

    def _source(self, node: SourceNode) -> SourceOperator:
        ports = self.plan.ports[node.name]
        plan, handoffs = self.plan, self._partition_handoffs(node)
        known = (one.partition for one in self.start.cut.positions if one.source == node.name)
        rests = dict.fromkeys(map(Partition, known)) | {one.partition: one.rest for one in handoffs}
        locations = SourceLocations(
            plan.source_locations,
            plan.read_locations,
            plan.waiting_locations,
            plan.control.outputs[1:],
            plan.ends,
            bool(plan.alarm_locations),
            [at for at in plan.unsorted_ports if ports.outputs[0] in plan.graph.reach[at]],
        )
        self.sources[node.name] = SourceOperator(
            self._context(node.name),
            plan.origin(node),
            self.environment.open_reader(
                node, rests if self.start.resumes else None, self._readers(node)
            ),
            node.spec.options,
            self._input(ports.inputs[0]),
            self._output_at(ports.outputs[0]),
            self._output_at(ports.outputs[1]),
            locations,
            self.start.override_history,
            plan.used_behind(node),
            self._silence(node),
            handoffs,
            resumes=self.start.resumes,
        )
        return self.sources[node.name]

    def _silence(self, node: SourceNode) -> Silence | None:
        if not self.plan.follows_clock:
            return None
        port = self._output_at(self.plan.ports[node.name].outputs[2])
        return Silence(
            port, self.plan.silence_locations, node.spec.options.advance_after, self.progress,
            self.environment.clock,
        )  # fmt: skip

    def _sink(self, node: SinkNode) -> SinkOperator | OrderedSink | OutboxSink:
        writer, flow = self.environment.open_writer(node), self.plan.flow
        if node.name in self.plan.outboxes:
            guard = self._guard(node.name, node.on_error)
            assert isinstance(writer, DeferredWriter), "an outbox needs a writer in transactions"
            results, before = self._inputs(node)
            group = group_of(node)
            context = self._context(node.name)
            first = self.plan.groups.first_bin(group)
            outbox = OutboxSink(context, results, before, writer, guard, first)
            self.outboxes.append(outbox)
            self.order_keepers.setdefault(group, []).append(outbox)
            return outbox
        ports = self._inputs(node)[0], self._output(node)
        if flow.delivery == "at_least_once":
            return SinkOperator(*ports, writer, self._guard(node.name, node.on_error))
        assert isinstance(writer, ChecksummedWriter), (
            "exactly-once delivery needs a writer in transactions"
        )
        sink = OrderedSink(
            self._context(node.name, order="total"),
            *ports,
            writer,
            self._guard(node.name, node.on_error, self.sink_dead_letters),
            self.sink_dead_letters,
            self.start.history.of(node.name, self.plan.groups.first_bin(group_of(node))),
            scope_of(node).depth - ROOT.depth,
        )
        self.ordered_sinks.append(sink)
        self.order_keepers.setdefault(group_of(node), []).append(sink)
        return sink

    def _loop_end(self, node: LoopNode | FeedbackNode) -> LoopEntry | Feedback:
        if isinstance(node, LoopNode):
            entering, back = self._inputs(node)
            return LoopEntry(self._context(node.name), entering, back, self._output(node))
        guard, keyless = self._guard(node.name, node.on_error), not has_keys(node.loop.upstream)
        if node.collection:
            loop = node.loop.name
            guard = EndlessLoop(loop, "fail", self.environment.dead, self.counters)
        source, output = self._inputs(node)[0], self._output(node)
        return Feedback(source, output, node.max_iterations, guard, keyless)

    def _operator(self, node: OperatorNode) -> Operator:
        scope = scope_of(node)
        services = OperatorServices(
            self._context(node.name, scope),
            self._inputs(node)[0],
            self._output(node),
            self._guard(node.name, node.on_error),
            [partial(self.progress.frontier, at) for at in self.plan.graph.ends(scope)],
            [self._read_arrangement(one.node.name) for one in node.arrangements],
        )
        return node.build(services)

    def _read_arrangement(self, name: str) -> ReadArrangement:
        output = self.plan.ports[name].outputs[0]
        cursor = self._arrangements[name].whole_cursor
        return ReadArrangement(cursor, partial(self.progress.frontier, output))

    def _readers(self, node: SourceNode) -> Readers:
        readers = self.start.readers.items()
        return {Partition(p): worker for (source, p), worker in readers if source == node.name}

    def _partition_handoffs(self, node: SourceNode) -> list[PartitionHandoff]:
        """Return the positions at which this worker continues to read partitions."""
        readers, positions = self.start.readers, self.start.cut.positions
        return [
            PartitionHandoff(
                Partition(one.partition), Rest(one.offset, one.end), one.maximum, one.newest,
                one.frontier,
            )
            for one in positions
            if one.source == node.name and readers[one.source, one.partition] == self.environment.me
        ]  # fmt: skip

    def _exchange(self, node: ExchangeNode) -> Exchange:
        guard = self._guard(node.name, node.on_error)
        exchange = Exchange(
            self._context(node.name, refuse=guard.failed),
            self._inputs(node)[0],
            self._output(node),
            self.routing,
            guard,
            self.plan.flow.link_credit,
            self.plan.groups.first_bin(node.group),
            self._has_reached(self.plan.arrival_sinks(node)),
            self._key_hashes() if node.collection else _bin_hashes,
        )
        self.exchanges.append(exchange)
        return exchange

    def _collection(self, node: CollectionNode | ChangesNode) -> Operator:
        # This loads numba, which takes half a second that other flows do without.
        from meander.dataflow.runtime.collection_factory import (
            stateful_collection,
            stateless_collection,
        )

        context = self._context(node.name, scope_of(node))
        inputs, output = self._inputs(node), self._output(node)
        if isinstance(node, StatefulCollectionNode):
            store = self.environment.open_store(node.name, node.codec, None, False)
            keyed = stateful_collection(
                node, context, inputs, output, store, self._max_handoff_bytes, self._arrangements,
                self._dictionary, partial(self._outer_time, self.plan.reader_outputs(node.name)),
                self._unread_rows(node),
            )  # fmt: skip
            self.outgoing.append(OutgoingState(keyed, self._output_at(self._pointer_output(node))))
            return keyed
        guard = self._guard(node.name, node.on_error if isinstance(node, IngestNode) else "fail")
        return stateless_collection(
            node, context, guard, inputs, output, self.plan, self._dictionary
        )

    def _unread_rows(self, node: StatefulCollectionNode) -> list[UnreadRows]:
        """Return the rows of this worker's bins that an operator had not read at the checkpoint."""
        return [
            one
            for one in self.start.cut.unread_rows
            if one.operator == node.name and self.owns(one.operator, one.bin)
        ]

    def owns(self, operator: str, bin: Bin) -> bool:
        """Return whether a bin is this worker's at the start."""
        owner = self.start.owners[self.plan.groups.number(operator, bin)]
        return owner == self.environment.me

    @property
    def _max_handoff_bytes(self) -> int:
        flow = self.plan.flow
        bins = flow.space.count * len(self.plan.stateful)
        return min(HANDOFF_BYTES, flow.move_memory // bins)

    def _key_hashes(self) -> Callable[[Batch], UInt64s]:
        from meander.dataflow.operators.collection.updates import key_hashes

        return key_hashes

    def _keyed(self, node: KeyedNode) -> KeyedOperator:
        *data, pointers = self._inputs(node)
        guard = self._guard(node.name, node.on_error)
        keyed = KeyedOperator(
            self._context(node.name, scope_of(node), order=_row_order(node)),
            self.plan.origin(node),
            data,
            pointers,
            self._outputs(node),
            self._held(node),
            self._timeline(node, guard),
            self.environment.open_store(
                node.name, node.codec, node.layout, node.expiry is not None
            ),
            node.order,
            node.inputs_first,
            self._max_handoff_bytes,
            self._has_reached([*self.plan.arrival_sinks(node), *self.plan.arrival_inputs(node)]),
            guard.retries,
        )
        self.outgoing.append(OutgoingState(keyed, self._output_at(self._pointer_output(node))))
        return keyed

    def _timeline(self, node: KeyedNode, guard: Guard) -> LogicTimeline[Logic]:
        upgrades = list[Upgrade]()
        timeline = LogicTimeline(self._logic(node, guard, Sealing(node.codec)))

        def install(change: LogicChange, before: ChangeableLogic, logic: ChangeableLogic) -> None:
            if change.generation > len(upgrades):
                upgrades.append(Upgrade(change.generation, partial(_upgraded, logic, before)))
            sealing = UpgradingSealing(node.codec, [*upgrades]) if upgrades else Sealing(node.codec)
            changed = self.plan.flow.wrap(with_logic(node, logic))
            assert isinstance(changed, KeyedNode)
            timeline.add(change.time, self._logic(changed, guard, sealing))
            timeline.forget_before(self._least_time(node))

        if node.name in self.plan.logics:
            self.logics.add(node.name, partial(expect_replaces, node), install)
        return timeline

    def _logic(self, node: KeyedNode, guard: Guard, sealing: Sealing) -> Logic:
        match node.logic:
            case FoldLogic(init, step):
                fold = Fold(init, step, sealing, guard)
                return fold if node.expiry is None else ExpiringFold(fold, node.expiry)
            case ProcessLogic(init, on_values, on_timer, on_notify, on_alarm, side) as logic:
                return Process(
                    init, on_values, on_timer, on_notify, on_alarm, side, sealing, guard,
                    node.expiry, logic.uses, logic.counted, logic.on_failed_timer,
                )  # fmt: skip
            case IntervalJoin() as interval:
                return IntervalLogic(interval, sealing, guard)
            case TableJoinLogic() as join:
                if join.on is None:
                    return TableJoin(join.step, join.keeps_unmatched, sealing, guard, node.expiry)
                return CopiesJoin(
                    join.step, join.on, join.keeps_unmatched, sealing, guard, node.expiry
                )
            case ColumnFold() as columns:
                return Columnar(columns, sealing, guard, node.expiry)
            case ColumnarWindows(windows, columns) as columnar:
                if isinstance(windows, Hopping):
                    if columnar.in_panes:
                        return PaneColumns(windows, columns, sealing, guard)
                    return HoppingColumns(windows, columns, sealing, guard)
                return SessionColumns(windows, columns, sealing, guard)

    def _least_time(self, node: Node) -> int:
        """Return the least outer time of records that may still come to a node, or wait there."""
        return self._outer_time(self.plan.ports[node.name].outputs[:1])

    def _outer_time(self, places: Sequence[Location]) -> int:
        """Return the least outer time that may still come at some locations, on any worker, or
        `END_TIME`."""
        frontiers = (outer_frontier(self.progress.frontier(at)) for at in places)
        return min((outer_time(time) for one in frontiers for time in one), default=END_TIME)

    def _next_layer(self) -> LayerId:
        return LayerId(self.environment.execution, self.environment.me, next(self._layers))

    def _has_reached(self, places: Sequence[Location]) -> Callable[[int], bool]:
        """Return a check whether the frontiers at some locations have reached a time."""

        def out(time: int) -> bool:
            return not any(
                outer_frontier(self.progress.frontier(at)).less_than(time) for at in places
            )

        return out

    # -- what an operator gets from its worker

    def _context(
        self,
        name: str,
        scope: Scope = ROOT,
        *,
        order: RowOrder = "arrival",
        refuse: Refuse | None = None,
    ) -> OperatorContext:
        """Return the context of one operator; `order` and `refuse` are of its spill buffers."""
        environment, flow = self.environment, self.plan.flow
        return OperatorContext(
            name=name,
            me=environment.me,
            clock=environment.clock,
            progress=self.progress,
            control=self._control_in(scope),
            counters=self.counters,
            report=self.report,
            inflight=self.inflight,
            throttle=self.throttle,
            topic=environment.topic,
            retention=self.retention,
            next_layer=self._next_layer,
            space=flow.space,
            max_waiting=self.memory.waiting,
            fires_timers=environment.fires_timers,
            furthest=partial(self.progress.furthest, self.plan.reading_locations),
            buffer=partial(self._buffer, name, order, refuse or self._refuse_unencodable(name)),
        )

    def _control(self) -> Antichain:
        return self.progress.frontier(self.plan.migrator.inputs[0])

    def _control_in(self, scope: Scope) -> Callable[[], Antichain]:
        """Return the control frontier as times of a scope."""
        if scope == ROOT:
            return self._control
        enter = Summary.between(ROOT.depth, scope.depth)
        return lambda: Antichain.of(*map(enter.results_in, self._control()))

    def _buffer(self, name: str, order: RowOrder, refuse: Refuse, purpose: str) -> SpillBuffer:
        def overflow(iterations: Iterations) -> DiskRows:
            store = self.environment.open_spill_store(
                "\0".join((name, purpose, *map(str, iterations)))
            )
            return DiskRows(f"operator {name!r}", iterations, store, self.disk, order, refuse)

        return SpillBuffer(overflow)

    def _refuse_unencodable(self, name: str) -> Refuse:
        """Return a refusal of values that cannot spill to disk; some operators keep them in memory
        only."""

        def refuse(batch: Batch, row: int, error: UnencodableError) -> None:
            raise MeanderError(
                f"operator {name!r}",
                f"waiting records exceed its limit of {self.memory.waiting:,} bytes, and not"
                f" all can go to disk: {error}",
                f"{self._more_memory}, or give it plain Python values only",
            )

        return refuse

    @property
    def _more_memory(self) -> str:
        owner = (
            "the worker's memory in the plan"
            if self.environment.memory
            else "the flow's max_waiting"
        )
        return f"raise {owner}"

    def _guard(self, name: str, policy: OnError, dead: DeadLetterWriter | None = None) -> Guard:
        dead, retries = dead or self.environment.dead, None
        if isinstance(policy, Retry):
            retries = Retries(policy, self.environment.clock, self.counters)
            self.retries.append(retries)
        return Guard(name, policy, dead, self.counters, self.environment.keepalive, retries)

    # -- ports

    def _inputs(self, node: Node) -> list[InputPort]:
        return [self._input(at) for at in self.plan.ports[node.name].inputs]

    def _input(self, at: Location) -> InputPort:
        self.inputs[at] = InputPort(at, self.progress, self.metrics.latencies[at])
        return self.inputs[at]

    def _outputs(self, node: Node) -> list[OutputPort]:
        return [self._output_at(at) for at in self.plan.ports[node.name].outputs]

    def _held(self, node: Node) -> OutputPort | None:
        held = self.plan.ports[node.name].held
        return None if held is None else self._output_at(held)

    def _output(self, node: Node) -> OutputPort:
        return self._output_at(self.plan.ports[node.name].outputs[0])

    def _output_at(self, at: Location) -> OutputPort:
        edges: list[Edge] = [edge for edge in self.plan.graph.edges if edge.source == at]
        return OutputPort(at, edges, self.progress, self.environment.me, self.channels)

    def _pointer_output(self, node: StatefulNode) -> Location:
        return self.plan.migrator.outputs[[n.name for n in self.plan.stateful].index(node.name)]


def _upgraded(logic: ChangeableLogic, before: ChangeableLogic, state: object) -> object:
    return logic.upgrade(state, before)


def _row_order(node: KeyedNode) -> RowOrder:
    if node.order == "processing":
        return "arrival"
    return "inputs_first" if node.inputs_first else "total"


def _bin_hashes(batch: Batch) -> UInt64s:
    return batch.bin_hashes
