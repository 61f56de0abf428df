"""The preflight: it checks a flow and its topics before a launch.

Guarantees for a prepared flow: its start is a valid position, and its module loads and defines one
flow. The topics that it reads and writes exist, and none is one of its internal topics. The
internal topics exist with the right settings. Cost: some round trips to Kafka.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Timer
from uuid import uuid4

from meander.app.common.clock import SystemClock
from meander.app.config.options import Options
from meander.app.loading.flow_code import FlowCode, LoadedFlow, load
from meander.app.loading.loader import SourceFiles
from meander.app.loading.plan_topics import formats, kafka_sinks, sink_topics
from meander.app.loading.policies import policies_of
from meander.connectors.custom.partition_list import names_of, partition_list
from meander.connectors.custom.source import Source
from meander.connectors.kafka import client
from meander.connectors.kafka.formats import is_user_code
from meander.connectors.kafka.reachability import expect_reachable
from meander.connectors.kafka.sink.record_limits import TopicSettings, with_limits
from meander.connectors.kafka.sink.sink import KafkaSink
from meander.connectors.kafka.source.source import source_topics
from meander.connectors.kafka.source.start_positions import parse_start
from meander.connectors.kafka.topic_metadata import (
    group,
    is_compacted,
    partitions_of,
    topic_identity,
    visible_configs,
)
from meander.connectors.topics.internal_topics import (
    TopicNames,
    ensure_internal,
    internal_topics,
    topic_names,
    without_internal,
)
from meander.dataflow.api.expansion import composites, part_name, part_names
from meander.dataflow.api.flow import Flow
from meander.dataflow.api.nodes import (
    OperatorNode,
    ProbeNode,
    SinkNode,
    StatefulCollectionNode,
    has_keys,
)
from meander.dataflow.api.plan import Plan
from meander.dataflow.control.decisions import JointDecision
from meander.dataflow.interfaces import SourceSpec
from meander.dataflow.policies.policy import Policy
from meander.schemas.errors import SetupError
from meander.schemas.log_lines import LineLogger
from meander.state.encoding.named_types import use
from meander.state.keys.ids import ExecutionId

COMPILES_AFTER = 5.0
"""The seconds after which loops are no longer being loaded, but compiled."""
log = LineLogger(__name__)


@dataclass(frozen=True, slots=True)
class PreparedFlow:
    """A flow that has passed the preflight, with everything that workers need."""

    plan: Plan
    code: FlowCode
    options: Options
    names: TopicNames
    topics: tuple[str, ...]
    """The name and id of the topic of each source, by number, or the label and partitions of a
    source beside Kafka."""
    outside: dict[str, dict[str, str]] = field(default_factory=dict)
    """The visible settings of the topics that sinks write to."""
    policies: tuple[Policy, ...] = ()
    """The policies of the run, which survive executions."""
    joint: JointDecision | None = None
    """The last joint decision of earlier executions."""
    start_offsets: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """The offsets at which the partitions of a source start without a checkpoint, by source; those
    of sources that start at the earliest record are left out."""
    driver: str = field(default_factory=lambda: uuid4().hex[:12])
    execution: ExecutionId = field(default_factory=lambda: ExecutionId(SystemClock().now_ms()))
    """The id with which the driver claims the flow; `claiming` returns the first id to use."""

    def with_execution(self, execution: ExecutionId) -> PreparedFlow:
        """Return the flow with the execution id of a claim."""
        return replace(self, execution=execution)

    def next_execution(
        self, workers: int, limits: TopicSettings, joint: JointDecision | None
    ) -> PreparedFlow:
        """Return the flow for the driver's next execution, with this number of workers, these
        stricter limits of topics, and the last joint decision.

        The id does not depend on the clock, so all ids of a claim precede those of a later claim.
        """
        return replace(
            self, execution=ExecutionId(self.execution + 1),
            options=replace(self.options, workers=workers),
            outside=with_limits(self.outside, limits), joint=joint,
        )  # fmt: skip

    @property
    def source(self) -> SourceFiles:
        """The files that a worker gets at its launch."""
        return self.code.source

    @property
    def flow(self) -> str:
        """The flow's name."""
        return self.plan.flow.name

    @property
    def group(self) -> str:
        """The consumer group that shows its progress to lag tools."""
        return group(self.options.prefix, self.flow)


LastSources = Callable[[client.Settings, TopicNames], Sequence[str]]
"""Returns the sources of the last execution of a flow, by number."""


def prepare(
    module: Path | LoadedFlow, options: Options, last_sources: LastSources = lambda *_: ()
) -> PreparedFlow:
    """Load a flow, unless it is loaded, and check its topics. Raises SetupError for the first
    failed check."""
    parse_start(options.start)
    loaded = module if isinstance(module, LoadedFlow) else load(module)
    code, flow = loaded.code, loaded.flow
    plan = Plan(flow, _source_names(flow, options, last_sources))
    use(flow.named_types)
    policies = (*policies_of(plan.flow, options.policies),)
    if not any(isinstance(node, SinkNode | ProbeNode) for node in plan.nodes):
        log.warning(
            "results_discarded",
            flow=plan.flow.name,
            reason="the flow has neither a sink nor a probe",
        )
    if plan.flow.delivery == "exactly_once":
        _expect_committable(plan)
    _expect_others(plan, options.prefix)
    expect_reachable(options.kafka)
    admin = client.admin(options.kafka)
    for _, topic in _topics(plan):
        partitions_of(admin, topic)
    for form, place in formats(plan):
        form.check(place)
        code.add_beside(form.files)
    outside = visible_configs(admin, sink_topics(admin, plan))
    _expect_keys(plan, outside)
    names = ensure_internal(admin, options.prefix, plan.flow.name)
    if any(isinstance(node, StatefulCollectionNode) for node in plan.nodes):
        _compile_loops(plan)
    return PreparedFlow(plan, code, options, names, _read(admin, plan), outside, policies)


def _compile_loops(plan: Plan) -> None:
    """Compile the loops of collections, so that no worker on this machine does it. Log it where
    they are not on disk."""
    # This loads numba, which takes half a second that flows without collections do without.
    from meander.dataflow.collections.compilation import compile_loops
    from meander.dataflow.generic_join.compilation import compile_lookups

    reason = "the first start on this machine takes up to a minute more"
    fields = {"flow": plan.flow.name, "reason": reason}
    timer = Timer(COMPILES_AFTER, log.info, ["loops_compiling"], fields)
    timer.daemon = True
    timer.start()
    compile_loops()
    if any(isinstance(node, OperatorNode) and node.arrangements for node in plan.nodes):
        compile_lookups()
    timer.cancel()


def _expect_committable(plan: Plan) -> None:
    """Raise SetupError for a sink that cannot write in a transaction."""
    for node in plan.nodes:
        if isinstance(node, SinkNode) and not isinstance(node.spec, KafkaSink):
            raise SetupError(
                f"sink {node.name!r}",
                "only a KafkaSink supports transactions, and the flow delivers exactly once",
                "give the flow delivery='at_least_once', or the sink a topic",
            )


def _expect_others(plan: Plan, prefix: str) -> None:
    """Raise SetupError for a source or sink whose topic is an internal topic of the flow."""
    own = {topic.name: topic.purpose for topic in internal_topics(prefix, plan.flow.name)}
    for kind, topic in _topics(plan):
        if topic in own:
            raise SetupError(
                f"{kind} topic {topic!r}",
                f"it is an internal topic of the flow ({own[topic]})",
                "give the flow or the topic another name, or the flow's topics a --prefix",
            )
    for node, spec in kafka_sinks(plan):
        if reached := [topic for topic in own if not spec.declared and spec.accepts(topic)]:
            raise SetupError(
                f"sink {node.name!r}",
                f"its topics {spec.topics!r} include {reached[0]!r}, an internal topic of the flow",
                "give it a pattern of the results' topics alone",
            )


def _expect_keys(plan: Plan, outside: Mapping[str, Mapping[str, str]]) -> None:
    """Raise SetupError for a sink of records without keys whose topic requires keys."""
    for node, spec in kafka_sinks(plan):
        for topic in spec.topics_of(outside):
            keyed = has_keys(node.upstream) or is_user_code(spec.key)
            if is_compacted(outside.get(topic, {})) and not keyed:
                raise SetupError(
                    f"sink {node.name!r}",
                    f"topic {topic!r} is compacted and accepts no records without keys",
                    "call key_by before the sink, give the sink a key function, or name a topic"
                    " with cleanup.policy=delete",
                )


def _source_names(flow: Flow, options: Options, last_sources: LastSources) -> Sequence[str]:
    """Return the names of the sources that read the topics of patterns, by number. Those of the
    last execution keep their numbers, and new topics follow in the order of their names."""
    specs = composites(flow.nodes)
    if not specs:
        return ()
    expect_reachable(options.kafka)
    present = {*client.admin(options.kafka).list_topics(timeout=client.REQUEST_TIMEOUT).topics}
    names = topic_names(options.prefix, flow.name)
    last = last_sources(options.kafka, names) if names.decisions in present else ()
    present = without_internal(present)
    found = part_names(flow.nodes, sorted(present))
    # A topic that was deleted, or left out of a list, is not read any more.
    heads = tuple(part_name(name, "") for name in specs)
    kept = (one for one in last if one in found or not one.startswith(heads))
    return [*dict.fromkeys([*kept, *found])]


def _read(admin: client.Admin, plan: Plan) -> tuple[str, ...]:
    topics = source_topics(plan.sources)
    return tuple(
        topic_identity(admin, topics[source.name])
        if source.name in topics
        else _partitions(source.spec)
        for source in plan.sources
    )


def _partitions(spec: SourceSpec) -> str:
    """Return the partitions that a source beside Kafka has now; '' for another one."""
    return partition_list(spec.label, names_of(spec)) if isinstance(spec, Source) else ""


def _topics(plan: Plan) -> Iterator[tuple[str, str]]:
    """Yield the purpose and the name of each topic."""
    yield from (("source", topic) for topic in source_topics(plan.sources).values())
    for _, spec in kafka_sinks(plan):
        yield from (("sink", topic) for topic in spec.declared)


def environ() -> dict[str, str]:
    """Return the variables of the driver that a module may read: MEANDER_*, no settings."""
    return {
        name: value
        for name, value in os.environ.items()
        if name.startswith("MEANDER_") and not name.startswith("MEANDER_KAFKA")
    }
