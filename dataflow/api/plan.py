"""The plan: the graph of a flow, in which the order of definition numbers the locations.

Guarantees that all members build equal graphs. A chain of stateless steps without a fork becomes
one operator. The plan adds the control source at the coordinator, and the migrator with an edge to
each stateful operator. Cost: once per start.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cached_property, partial
from itertools import chain
from types import UnionType

from meander.dataflow.api.determinism import is_nondeterministic
from meander.dataflow.api.expansion import expanded
from meander.dataflow.api.flow import Flow
from meander.dataflow.api.kept_arrangements import kept_arrangements
from meander.dataflow.api.lineage import Lineages, input_lineages
from meander.dataflow.api.logics import changeable_logics
from meander.dataflow.api.nodes import (
    ArrangeNode,
    AsyncMapNode,
    ChangesNode,
    ConsolidateNode,
    EnterNode,
    ExchangeNode,
    FeedbackNode,
    KeyedNode,
    LoopNode,
    Node,
    OperatorNode,
    Output,
    ProbeNode,
    ProcessLogic,
    SinkNode,
    SourceNode,
    StatefulCollectionNode,
    StatefulNode,
    StepsNode,
    has_alarms,
    has_keys,
    outputs,
    scope_of,
    upstreams,
    uses,
)
from meander.dataflow.api.validation import functions_of
from meander.dataflow.control.bin_handoff import BinHandoff
from meander.dataflow.control.colocation import ColocationGroups
from meander.dataflow.control.instructions import (
    CancelMove,
    Prefetch,
    Revoke,
    Rewrite,
    StartPreCopy,
)
from meander.dataflow.control.logic_change import LogicChange, LogicVersion, PrepareLogic
from meander.dataflow.control.partition_handoff import PartitionHandoff, ReassignPartition
from meander.dataflow.control.reassignment import Moves
from meander.dataflow.graph.graph import ROOT, EdgeId, Graph, Location, Scope
from meander.dataflow.graph.graph import Node as Ports
from meander.dataflow.logic.changeable import ChangeableLogic, version_of
from meander.dataflow.operators.retries import Retry
from meander.dataflow.records.batch import Batch
from meander.dataflow.wire import Payload
from meander.schemas.errors import SetupError
from meander.state.checkpoint.arrangements import KeptArrangement
from meander.state.checkpoint.checkpoint import Piece
from meander.state.keys.ids import Bin

MAX_BINS = 1 << 19
"""The most bins of all groups together: one decision, which is one record, names all owners."""


class Plan:
    """A plan that holds the graph of a flow and the place of each operator in it."""

    def __init__(self, flow: Flow, sources: Sequence[str] = ()) -> None:
        """`sources` names the sources of a flow that reads the topics of a pattern, by number."""
        self.flow = flow
        self.nodes = _fuse(expanded(flow.nodes, sources))
        self.graph = Graph()
        self.ports: dict[str, Ports] = {}
        defined = [n for n in self.nodes if isinstance(n, SourceNode)]
        # A new topic of a pattern comes behind the sources that have a number.
        numbers = {name: number for number, name in enumerate(sources)}
        self.sources = sorted(defined, key=lambda one: numbers.get(one.name, len(numbers)))
        self.keyed = [n for n in self.nodes if isinstance(n, KeyedNode)]
        self.stateful = [n for n in self.nodes if isinstance(n, StatefulNode)]
        self.exchanges = [n for n in self.nodes if isinstance(n, ExchangeNode)]
        if not self.sources:
            raise SetupError(f"flow {flow.name!r}", "it has no source", "call flow.source(...)")
        # The control source has two outputs: commands, and advance requests.
        self.control = self.graph.node("control", 0, 2)
        self.migrator = self.graph.node("migrator", 1, len(self.stateful))
        self.partition_migrator = self.graph.node("partition_migrator", 1, len(self.sources))
        self.snapshots = self.graph.node("snapshots", 0, 0)
        self.graph.edge(self.control.outputs[0], self.migrator.inputs[0], credit=False)
        self.graph.edge(self.control.outputs[0], self.partition_migrator.inputs[0], credit=False)
        self.graph.announcement_ports.add(self.control.outputs[1])
        if self.groups.total > MAX_BINS:
            raise _too_many_bins(flow.name, self.groups)
        if self.outboxes and flow.checkpoints.interval is None:
            raise _without_interval(min(self.outboxes))
        for node in self.nodes:
            self._add(node)
        for node in self.nodes:
            for upstream, target in zip(
                upstreams(node), self.ports[node.name].inputs, strict=False
            ):
                self.graph.edge(self._output(upstream), target)
            if isinstance(node, FeedbackNode):
                back = self.ports[node.loop.name].inputs[1]
                self.graph.feedback(self.ports[node.name].outputs[0], back)
        for output, keyed in zip(self.migrator.outputs, self.stateful, strict=True):
            self.graph.edge(output, self.handoff_input(keyed), credit=False)
        for output, source in zip(self.partition_migrator.outputs, self.sources, strict=True):
            self.graph.edge(output, self.ports[source.name].inputs[0], credit=False)
            self.graph.announcement_ports.update(self.ports[source.name].outputs[1:])

    def _add(self, node: Node) -> None:
        more = isinstance(node, StatefulNode | SourceNode | LoopNode) or node.name in self.outboxes
        inputs = len(upstreams(node)) + more + isinstance(node, StatefulCollectionNode)
        announcements = (1 + self.follows_clock) if isinstance(node, SourceNode) else 0
        self.ports[node.name] = self.graph.node(
            node.name, inputs, outputs(node) + announcements, scope_of(node), holds=has_alarms(node)
        )

    def _output(self, output: Output) -> Location:
        return self.ports[output.node.name].outputs[output.number]

    def handoff_input(self, keyed: StatefulNode) -> Location:
        """Return the input by which bin handoffs reach a stateful operator."""
        return self.ports[keyed.name].inputs[-1]

    def input_at(self, name: str, number: int) -> Location:
        """Return an operator's input by its number."""
        return self.ports[name].inputs[number]

    def origin(self, node: SourceNode | KeyedNode | ChangesNode) -> int:
        """Return the number of a node's records in the total order."""
        return self.origins.index(node.name)

    @cached_property
    def origins(self) -> list[str]:
        """Return the nodes that number records, in the order of their numbers. Sources come
        first."""
        changes = [n for n in self.nodes if isinstance(n, ChangesNode)]
        numbered: list[Node] = [*self.sources, *self.keyed, *changes]
        return [one.name for one in numbered]

    @cached_property
    def groups(self) -> ColocationGroups:
        """Return the colocation groups of the stateful operators."""
        alone = {one.name: not one.colocate for one in self.stateful}
        return ColocationGroups(self.flow.space.count, alone)

    @cached_property
    def logics(self) -> dict[str, LogicVersion]:
        """Return the changeable logics in the definition of the flow, by operator."""
        logics = self._changeable_logics.items()
        return {name: version_of(one, self.home_of(name)) for name, one in logics}

    def home_of(self, operator: str) -> str:
        """Return the module in which versions of an operator's logic have bare names: that of the
        flow, or that of the logic where no loader has loaded the flow."""
        return self.flow.module or type(self._changeable_logics[operator]).__module__

    @cached_property
    def _changeable_logics(self) -> Mapping[str, ChangeableLogic]:
        return changeable_logics(self.nodes)

    @cached_property
    def remote_payloads(self) -> dict[EdgeId, tuple[type, ...]]:
        """Return the edges between members, and the payloads that travel on each."""
        instructions = StartPreCopy, Prefetch, CancelMove, Rewrite, PrepareLogic
        orders = Moves, Revoke, LogicChange, *instructions
        carried: dict[Location, tuple[type, ...]] = {self.migrator.inputs[0]: orders}
        carried[self.partition_migrator.inputs[0]] = (ReassignPartition,)
        carried.update((self.handoff_input(one), (BinHandoff,)) for one in self.stateful)
        carried.update(
            (self.ports[source.name].inputs[0], (PartitionHandoff,)) for source in self.sources
        )
        outputs = {self.ports[exchange.name].outputs[0] for exchange in self.exchanges}
        carried.update((e.target, (Batch,)) for e in self.graph.edges if e.source in outputs)
        return {e.id: carried[e.target] for e in self.graph.edges if e.target in carried}

    @cached_property
    def inputs_by_partition(self) -> set[Location]:
        """Return the inputs of records without keys that belong to the owners of their partitions'
        bins."""
        outputs = {self.ports[one.name].outputs[0] for one in self.exchanges if one.keyless}
        targets = {edge.target for edge in self.graph.edges if edge.source in outputs}
        # Records of an outbox continue at the input of the results behind it.
        inputs = (self.ports[sink].inputs for sink in self.outboxes)
        return targets | {before for results, before in inputs if results in targets}

    @cached_property
    def keyed_inputs(self) -> set[Location]:
        """Return the inputs whose records have keys. At one input all records have keys, or none,
        so joins, sorting, spilling and restores never mix the two."""
        inputs = chain.from_iterable(map(self._record_inputs, self.nodes))
        return {at for at, output in inputs if has_keys(output)}

    def accepts(self, at: Location, payload: Payload) -> bool:
        """Return whether an input accepts a payload: a batch has keys where the input has."""
        if not isinstance(payload, Batch):
            return True
        return (payload.keys is not None) == (at in self.keyed_inputs)

    def _record_inputs(self, node: Node) -> Iterator[tuple[Location, Output]]:
        """Yield the inputs of a node that receive records, each with its upstream output."""
        inputs = self.ports[node.name].inputs
        yield from zip(inputs, upstreams(node), strict=False)
        if node.name in self.outboxes:
            yield inputs[1], upstreams(node)[0]
        if isinstance(node, LoopNode):
            # Records of the feedback edge lose their keys where the stream of the loop has none.
            yield inputs[1], node.upstream

    @cached_property
    def reached_sinks(self) -> dict[int, set[str]]:
        """Return the sinks that each source reaches, by the number of the source."""
        found = {self.origin(source): set[str]() for source in self.sources}
        for node in self.nodes:
            if isinstance(node, SinkNode):
                for source in self._sources_of(node):
                    found[self.origin(source)].add(node.name)
        return found

    def used_behind(self, source: SourceNode) -> set[str]:
        """Return the extra columns that functions behind a source read."""
        return {
            name
            for node in self.nodes
            for name in uses(node)
            if source.name in self._nodes_before(node)
        }

    def _sources_of(self, sink: SinkNode) -> list[SourceNode]:
        """Return the sources from which a sink's records may come."""
        return [one for one in self._nodes_before(sink).values() if isinstance(one, SourceNode)]

    @cached_property
    def functions_before(self) -> dict[str, list[str]]:
        """Return the user's functions before each sink, by the name of the sink."""
        sinks = {node.name: self._nodes_before(node) for node in self.nodes
                 if isinstance(node, SinkNode)}  # fmt: skip
        return {
            sink: [
                name for node in self.nodes if node.name in before for name in _functions(node)
            ]
            for sink, before in sinks.items()
        }  # fmt: skip

    @cached_property
    def outboxes(self) -> set[str]:
        """Return the sinks that need an outbox: the flow delivers exactly once, and a replay may
        give other results. Their results wait for checkpoints."""
        if self.flow.delivery == "at_least_once":
            return set()
        sinks = [node for node in self.nodes if isinstance(node, SinkNode)]
        if any(keyed.order == "processing" for keyed in self.keyed):
            # After a restart sources give records other times than before.
            return {sink.name for sink in sinks}
        through = {sink.name: [sink, *self._nodes_before(sink).values()] for sink in sinks}
        entered = {node.name for node in self.nodes if isinstance(node, EnterNode)}
        return {
            sink for sink, nodes in through.items()
            if any(_is_nondeterministic(one) or _shows_batches(one, entered) for one in nodes)
        }  # fmt: skip

    def arrival_sinks(self, node: KeyedNode | ExchangeNode) -> list[Location]:
        """Return the outputs of sinks that write a node's records on arrival. No stateful operator
        lies between."""
        if self.flow.delivery == "exactly_once":
            return []
        reached = self._before_stateful(node)
        sinks = (one.name for one in self.nodes if isinstance(one, SinkNode))
        return [self.ports[sink].outputs[0] for sink in sinks if sink in reached]

    def arrival_inputs(self, node: KeyedNode) -> list[Location]:
        """Return the inputs at which the next stateful operators apply a node's records on
        arrival."""
        reached = self._before_stateful(node)
        return [
            at for one in self.keyed if one.order == "processing"
            for at, upstream in zip(self.ports[one.name].inputs, upstreams(one), strict=False)
            if upstream.node.name in reached
        ]  # fmt: skip

    def _before_stateful(self, node: Node) -> set[str]:
        """Return a node and those that its records reach before another stateful operator."""
        reached, known = {node.name}, set[str]()
        while reached != known:
            known = {*reached}
            reached |= {
                node.name for node in self.nodes
                if not isinstance(node, StatefulNode)
                and any(one.name in known for one in self._upstream_nodes(node))
            }  # fmt: skip
        return reached

    @cached_property
    def ordered_sinks(self) -> dict[str, list[str]]:
        """Return the ordered sinks of a flow that delivers exactly once, with the user's functions
        before each."""
        if self.flow.delivery == "at_least_once":
            return {}
        sinks = self.functions_before.keys() - self.outboxes
        return {sink: names for sink, names in self.functions_before.items() if sink in sinks}

    @cached_property
    def lineages(self) -> Lineages:
        """Return the lineage of each input that receives records."""
        return input_lineages(self.nodes, self.outboxes)

    def in_outbox(self, piece: Piece) -> bool:
        """Return whether the records of a piece were in an outbox, which their sink may no longer
        have."""
        return piece.input > 0 and piece.node in self.functions_before

    def _is_reached_unsorted(self, sink: SinkNode) -> bool:
        """Return whether records reach a sink without a stateful operator. Some records leave a
        loop before they reach the stateful operators in it."""
        before = self._nodes_before(sink, StatefulNode | ConsolidateNode).values()
        return any(isinstance(one, SourceNode) for one in before)

    def _nodes_before(
        self, last: Node, up_to: type | UnionType | tuple[()] = ()
    ) -> Mapping[str, Node]:
        """Return the operators before a node, by name. The search backward stops at nodes of the
        type `up_to`."""
        pending, seen = self._upstream_nodes(last), dict[str, Node]()
        while pending:
            node = pending.pop()
            if node.name not in seen:
                seen[node.name] = node
                pending += [] if isinstance(node, up_to) else self._upstream_nodes(node)
        return seen

    def _upstream_nodes(self, node: Node) -> list[Node]:
        """Return the nodes whose outputs a node reads, feedback nodes included."""
        feedback = (n for n in self.nodes if isinstance(n, FeedbackNode) and n.loop is node)
        read = node.arrangements if isinstance(node, OperatorNode) else ()
        return [one.node for one in (*upstreams(node), *read, *(one.upstream for one in feedback))]

    @cached_property
    def coordinator_inputs(self) -> set[Location]:
        """Return the inputs that accept messages of the coordinator alone."""
        return {self.migrator.inputs[0], self.partition_migrator.inputs[0]}

    @cached_property
    def names(self) -> dict[Location, str]:
        """Return the operator of each port of the user's flow."""
        named = {
            at: name for name, ports in self.ports.items() for at in (*ports.inputs, *ports.outputs)
        }
        return named | {one.held: name for name, one in self.ports.items() if one.held is not None}

    @property
    def processing_inputs(self) -> list[Location]:
        """Return the inputs whose records are applied in the order of their arrival."""
        ordered = [keyed for keyed in self.keyed if keyed.order == "processing"]
        return [at for keyed in ordered for at in self.ports[keyed.name].inputs[:-1]]

    @cached_property
    def unsorted_ports(self) -> list[Location]:
        """Return the ports where records are not sorted by time. A worker that takes over a
        partition waits until earlier records of it have passed these ports."""
        sinks = (node for node in self.nodes if isinstance(node, SinkNode))
        plain = (sink for sink in sinks if sink.name not in self.ordered_sinks)
        reached = filter(self._is_reached_unsorted, plain)
        return [*self.processing_inputs, *(self.ports[sink.name].outputs[0] for sink in reached)]

    def ports_ahead(self, start: Location) -> set[Location]:
        """Return the ports whose records of a partition precede those at the input `start`. No
        operator sorts either before an unsorted port.

        The operator of `start` sends its records first, so its own ports do not count. Feedback
        does not count either, as no loop keeps an order of arrival. A path ends at a stateful
        operator: no record overtakes the records in it, and its timers might wait for the frontier
        that these records hold back (I7).
        """
        ends = {at for one in self.stateful for at in self.ports[one.name].outputs}
        unsorted = {*self.unsorted_ports}
        reached = partial(self.graph.reached_without, excluded=self.sorting_inputs | ends)
        behind = [at for at in reached(start) if self.names[at] != self.names[start]]
        return {at for at in behind if start not in (found := reached(at)) and found & unsorted}

    @cached_property
    def sorting_inputs(self) -> set[Location]:
        """Return the inputs whose operators sort records by time first."""
        ordered = [keyed for keyed in self.keyed if keyed.order == "event"]
        inputs = {at for keyed in ordered for at in self.ports[keyed.name].inputs[:-1]}
        inputs |= self.collection_inputs
        sorting = (n.name for n in self.nodes if isinstance(n, OperatorNode) and n.sorts)
        inputs |= {self.ports[name].inputs[0] for name in sorting}
        return inputs | {self.ports[sink].inputs[0] for sink in self.ordered_sinks}

    @cached_property
    def collection_inputs(self) -> set[Location]:
        """Return the inputs of updates that belong to the owners of their keys' bins."""
        arrangements = [one for one in self.nodes if isinstance(one, ArrangeNode)]
        exchanges = [one.name for one in self.exchanges if one.collection]
        by_key = [*exchanges, *(one.name for one in arrangements)]
        outputs = {self.ports[name].outputs[0] for name in by_key}
        readers = {self.ports[one.name].inputs for one in self.nodes
                   if isinstance(one, StatefulCollectionNode | ConsolidateNode | OperatorNode)
                   }  # fmt: skip
        inputs = {*chain.from_iterable(readers)}
        # An arrangement sends what it got, so what it has not sent belongs there, too.
        unsent = {self.ports[one.name].inputs[1] for one in arrangements}
        return unsent | {e.target for e in self.graph.edges if e.source in outputs} & inputs

    @cached_property
    def arrangements(self) -> tuple[KeptArrangement, ...]:
        """Return the arrangements of all operators."""
        return tuple(kept_arrangements(self.nodes))

    def reader_outputs(self, operator: str) -> list[Location]:
        """Return the outputs of the operators that read the arrangements of an operator; it reads
        them, too."""
        readers = {one.operator for one in self.arrangements if one.kept_by == operator}
        readers |= {one.name for one in self.nodes if isinstance(one, OperatorNode)
                    if operator in {read.node.name for read in one.arrangements}}  # fmt: skip
        return [self.ports[name].outputs[0] for name in readers]

    def bin_of(self, operator: str, key: bytes) -> Bin:
        """Return the bin of a key of a stateful operator."""
        if operator in {node.name for node in self.keyed}:
            return Bin(self.flow.space.bin_of(key))
        from meander.dataflow.operators.collection.updates import bin_of

        return bin_of(self.flow.space, key)

    @property
    def source_locations(self) -> list[Location]:
        """Return the locations at which sources hold the frontiers of their partitions."""
        return [self.ports[source.name].outputs[0] for source in self.sources]

    @cached_property
    def read_locations(self) -> list[Location]:
        """Return the locations at which sources hold read records, sent or not."""
        return [at for source in self.sources for at in self.ports[source.name].outputs[:2]]

    @cached_property
    def reading_locations(self) -> list[Location]:
        """Return the locations at which a source reads, or gets a partition from another worker."""
        inputs = [self.ports[source.name].inputs[0] for source in self.sources]
        return [*self.read_locations, *inputs]

    @property
    def follows_clock(self) -> bool:
        """Return whether logical time follows the wall clock while all sources are silent."""
        return any(source.spec.options.advance_after is not None for source in self.sources)

    @cached_property
    def silence_locations(self) -> list[Location]:
        """Return the locations at which silent sources agree how far time follows the clock."""
        return [at for source in self.sources for at in self.ports[source.name].outputs[2:]]

    @property
    def waiting_locations(self) -> list[Location]:
        """Return the locations at which a capability or message may wait for the sources."""
        others = {
            *self.source_locations, *self.control.outputs, *self.alarm_locations,
            *self.silence_locations,
        }  # fmt: skip
        return [Location(at) for at in range(self.graph.locations) if Location(at) not in others]

    @cached_property
    def alarm_locations(self) -> list[Location]:
        """Return the locations at which operators hold the times of pending alarms, which wait for
        the wall clock alone."""
        return [ports.held for ports in self.ports.values() if ports.held is not None]

    @cached_property
    def ends(self) -> list[Location]:
        """Return the outputs without a reader. Together they are the probe of the flow."""
        return self.graph.ends(ROOT)

    @cached_property
    def probes(self) -> dict[str, Location]:
        """Return the locations whose frontiers are shown, by the name of the probe or sink."""
        shown = (n for n in self.nodes if isinstance(n, ProbeNode | SinkNode))
        return {n.name: self.ports[n.name].outputs[0] for n in shown}


def _too_many_bins(flow: str, groups: ColocationGroups) -> SetupError:
    return SetupError(
        f"flow {flow!r}",
        f"it has {groups.total:,} bins, {groups.count:,} for all operators that move together and "
        f"as many for each that moves alone, and {MAX_BINS:,} is the most",
        "give it fewer bins, or fewer operators with colocate=False",
    )


def _without_interval(sink: str) -> SetupError:
    return SetupError(
        f"sink {sink!r}",
        "an operator before it applies records on arrival, or has a nondeterministic function, so"
        " results wait for checkpoints, and the flow takes none by itself",
        "give the flow checkpoints=Checkpointing(interval=1.0), the seconds that results may wait",
    )


def _is_nondeterministic(node: Node) -> bool:
    """Return whether a function of a node is nondeterministic, also one of a source or sink, or is
    called by the wall clock."""
    if has_alarms(node):
        return True
    functions = [function for _, function in functions_of(node)]
    spec: object = node.spec if isinstance(node, SourceNode | SinkNode) else None
    if is_dataclass(spec):
        functions += [getattr(spec, one.name) for one in fields(spec)]
    return isinstance(node, AsyncMapNode) or any(map(is_nondeterministic, functions))


def _shows_batches(node: Node, entered: Collection[str]) -> bool:
    """Return whether results of a node in a scope that is not a loop depend on the last coordinates
    that other workers gave, or on how many times a worker divided a time into."""
    match node:
        case ExchangeNode(collection=False) | KeyedNode(logic=ProcessLogic(on_notify=Callable())):
            scope: Scope | None = scope_of(node)
            while scope is not None and scope.name not in entered:
                scope = scope.parent
            return scope is not None
    return False


def _functions(node: Node) -> list[str]:
    match node:
        case StepsNode(steps=steps):
            return [step.name for step in steps]
    return [node.name] if [*functions_of(node)] else []


def _fuse(nodes: list[Node]) -> list[Node]:
    """Join each chain of stateless steps into one node, and leave out exchanges without a reader. A
    step with retries stays alone, so the steps before it run once per record."""
    readers = Counter(upstream.node.name for node in nodes for upstream in upstreams(node))
    result: dict[str, Node] = {}
    for node in nodes:
        if isinstance(node, ExchangeNode) and not readers[node.name]:
            continue
        if isinstance(node, StepsNode):
            before = result[node.upstream.node.name]
            alone = _retries(node) or _retries(before)
            if isinstance(before, StepsNode) and readers[before.name] == 1 and not alone:
                del result[before.name]
                node = StepsNode(node.name, before.upstream, (*before.steps, *node.steps))
        result[node.name] = node
    return list(result.values())


def _retries(node: Node) -> bool:
    return isinstance(node, StepsNode) and any(isinstance(s.on_error, Retry) for s in node.steps)
