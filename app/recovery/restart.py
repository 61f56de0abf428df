"""Start a new execution: fence older executions, then read the decisions and markers they left.

Guarantees I8. First every worker that may still commit is fenced. Then the start of the new
execution is written to the decision log. Only then are commit markers and decisions read, up to
that record, so later decisions of an older execution do not count. Cost: about 70 ms to fence all
workers, and one read of the decision log and the markers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from meander.app.common.concurrent import open_concurrently
from meander.app.loading.preflight import PreparedFlow
from meander.app.recovery.checkpoint_index import (
    CheckpointIndex,
    earlier_checkpoints,
    expect_retained,
    find_checkpoint,
    newest_usable,
    read_savepoints,
    retained_checkpoints,
)
from meander.app.recovery.decision_log import from_bytes, to_bytes
from meander.connectors.custom.partition_list import continues, names_of
from meander.connectors.custom.source import Source
from meander.connectors.kafka import client
from meander.connectors.kafka.client import Settings
from meander.connectors.kafka.sink.transactions import transactional_id
from meander.connectors.kafka.source.lost_records import SKIP_REMEDY, in_words
from meander.connectors.kafka.source.source import lost_records, source_topics
from meander.connectors.topics import checkpoints
from meander.connectors.topics.control import ControlTopic, DecisionTopic
from meander.connectors.topics.full_read import read_all
from meander.connectors.topics.internal_topics import TopicNames
from meander.dataflow.api.plan import Plan
from meander.dataflow.api.redefinitions import redefinitions
from meander.dataflow.checkpoint.compatibility import duplicated_results, expect_fits, renumbered
from meander.dataflow.checkpoint.restore_plan import RestorePlan, without_sent_results
from meander.dataflow.control.decisions import (
    CommandsDoneDecision,
    JoinDecision,
    JointDecision,
    LogicDecision,
    StartDecision,
)
from meander.dataflow.control.partition_handoff import ReassignPartition
from meander.dataflow.exactly_once.commit_history import (
    NO_HISTORY,
    History,
    Written,
    effective,
    joint_decisions,
    logic_changes,
)
from meander.dataflow.exactly_once.commit_markers import CommitMarker
from meander.schemas.log_lines import LineLogger
from meander.state.checkpoint.checkpoint import INITIAL_CUT, Checkpoint
from meander.state.keys.ids import ExecutionId, WorkerId

log = LineLogger(__name__)


class StartCheckpoint(NamedTuple):
    """A checkpoint from which an execution starts, with the others that the flow retains."""

    offset: int
    checkpoint: Checkpoint
    savepoints: dict[int, Checkpoint]
    """All readable savepoints, by offset."""
    earlier: dict[int, Checkpoint]
    """Earlier checkpoints that stay usable, by offset, the oldest first."""
    last: int
    """The greatest number of any checkpoint."""

    @property
    def retained(self) -> dict[int, Checkpoint]:
        """All checkpoints that the flow retains as it starts, by offset."""
        return self.earlier | {self.offset: self.checkpoint} | self.savepoints


def fence_older_executions(prepared: PreparedFlow) -> None:
    """Fence all workers of older executions, so none of them commits any more."""
    options = prepared.options
    if prepared.plan.flow.delivery == "exactly_once":
        workers = used_worker_ids(read_decisions(options.kafka, prepared.names.decisions))
        fence(options.kafka, options.prefix, prepared.flow, workers)


def choose_checkpoint(
    prepared: PreparedFlow, wanted: str | None = None, history: History = NO_HISTORY
) -> StartCheckpoint | None:
    """Return the checkpoint from which the flow starts; None where it starts without states.

    `wanted` is the name of a savepoint or a number; the default is the newest checkpoint. Raises
    SetupError where the flow cannot start from it, given the `history` of earlier executions.
    """
    settings, topic = prepared.options.kafka, prepared.names.checkpoints
    index = CheckpointIndex.of(read_decisions(settings, prepared.names.decisions))
    with checkpoints.open_checkpoints(settings, prepared.names) as reader:
        among = retained_checkpoints(reader, index)
        if wanted is None:
            found = newest_usable(reader, index, prepared.flow, topic)
            if found is None:
                return None
            offset, checkpoint = found
        else:
            if not reader.last(1):
                expect_retained(index, prepared.flow, topic)
            offset = find_checkpoint(among, index, wanted)
            checkpoint = among.found[offset]
        most = prepared.plan.flow.checkpoints.retained - 1
        bootstrapped = checkpoint.cut == INITIAL_CUT
        earlier = {} if bootstrapped else earlier_checkpoints(among, index, offset, most)
        last, savepoints = reader.number, read_savepoints(reader, index)
    before = [one.number for one in earlier.values()]
    _expect_restorable(prepared, index, checkpoint, history, max(before, default=None))
    log.info(
        "checkpoint_selected",
        number=checkpoint.number,
        operators=",".join(sorted(checkpoint.operators)),
    )
    return StartCheckpoint(offset, checkpoint, savepoints, earlier, last)


def _expect_restorable(
    prepared: PreparedFlow,
    index: CheckpointIndex,
    checkpoint: Checkpoint,
    history: History,
    before: int | None,
) -> None:
    """Raise SetupError where a flow cannot start from a checkpoint.

    `before` is the number of an earlier checkpoint, which the error may propose.
    """
    plan, options = prepared.plan, prepared.options
    others, recreated = list[str](), set[str]()
    if index.start is not None:
        sources = [one.name for one in plan.sources]
        now = dict(zip(sources, prepared.topics, strict=True))
        topics = {name: now[name] for name in source_topics(plan.sources)}
        recreated = recreated_topics(index.start, topics)
        others = [*renumbered(index.start, plan), *other_topics(index.start, topics)]
        others += other_partitions(index.start, plan)
    lost, expired = lost_positions(options.kafka, plan, checkpoint, recreated)
    if not options.skip_lost:
        lost += expired
    left = replace(checkpoint, cut=without_sent_results(plan, checkpoint.cut, history))
    twice = [] if options.allow_nondeterminism else duplicated_results(checkpoint, plan, history)
    # Workers skip lost records when they open their sources, and name them then.
    skip = SKIP_REMEDY if expired and not options.skip_lost else ""
    expect_fits(left, plan, options.allow_dropped_state, others, twice, before, skip, lost)


def lost_positions(
    settings: Settings, plan: Plan, checkpoint: Checkpoint, recreated: Collection[str] = ()
) -> tuple[list[str], list[str]]:
    """Return where source topics no longer hold the next records, in one sentence per topic.

    The second list holds losses by retention alone, which `--skip-lost` permits. Offsets of
    `recreated` topics say nothing.
    """
    topics = source_topics(plan.sources)
    positions = defaultdict[str, dict[int, int]](dict)
    for one in checkpoint.cut.positions:
        if one.source in topics:
            positions[topics[one.source]][one.partition] = one.offset
    others = "was deleted and recreated, so its records are others"
    lost, expired = [f"topic {one!r} {others}" for one in sorted(recreated)], list[str]()
    for topic, offsets in positions.items():
        if topic in recreated:
            continue
        found, absent = lost_records(settings, topic, offsets)
        if absent:
            lost.append(
                f"topic {topic!r} was read in partition {max(absent)}, and has none such now"
            )
        for sentences, some in (
            (lost, [one for one in found if not one.expired]),
            (expired, [one for one in found if one.expired]),
        ):
            if some:
                sentences.append(in_words(some))
    return lost, expired


def recreated_topics(start: StartDecision, topics: Mapping[str, str]) -> set[str]:
    """Return the topics that were deleted and recreated since the last execution started.

    `topics` maps each source to the name and id of the topic that it reads now.

    >>> start = StartDecision(0, (), 1, sources=("a", "b"), topics=("lines 1", "words 2"))
    >>> recreated_topics(start, {"a": "lines 3", "b": "others 4", "c": "new 5"})
    {'lines'}
    """
    had = dict(zip(start.sources, start.topics, strict=False))
    names = {name: topic.partition(" ")[0] for name, topic in topics.items()}
    return {
        names[name]
        for name, topic in topics.items()
        if had.get(name, topic) != topic and had[name].partition(" ")[0] == names[name]
    }


def other_topics(start: StartDecision, topics: Mapping[str, str]) -> list[str]:
    """Return, in sentences, which sources read a topic of another name than in the last execution.

    Offsets of the former topic say nothing about the new one. `topics` maps each source to the
    name and id of the topic that it reads now.

    >>> start = StartDecision(0, (), 1, sources=("a", "b"), topics=("lines 1", "words 2"))
    >>> other_topics(start, {"a": "lines 3", "b": "others 4", "c": "new 5"})
    ["source 'b' has read topic 'words' of id 2, and is to read topic 'others' of id 4"]
    """
    had = dict(zip(start.sources, start.topics, strict=False))
    recreated = recreated_topics(start, topics)
    return [
        f"source {name!r} has read {_topic_in_words(had[name])},"
        f" and is to read {_topic_in_words(topic)}"
        for name, topic in topics.items()
        if had.get(name, topic) != topic and topic.partition(" ")[0] not in recreated
    ]


def other_partitions(start: StartDecision, plan: Plan) -> list[str]:
    """Return, in sentences, which sources beside Kafka have other partitions than in the last
    execution, so that positions say nothing about them."""
    had = dict(zip(start.sources, start.topics, strict=False))
    custom = {one.name: one.spec for one in plan.sources if isinstance(one.spec, Source)}
    return [
        f"source {name!r} does not begin with the partitions that it has read"
        for name, spec in custom.items()
        if name in had and not continues(had[name].rpartition(" ")[2], names_of(spec))
    ]


def _topic_in_words(topic: str) -> str:
    name, _, id = topic.partition(" ")
    return f"topic {name!r} of id {id}" if topic else "no topic"


def start_execution(
    prepared: PreparedFlow,
    found: StartCheckpoint | None,
    decisions: DecisionTopic,
    expect_ours: Callable[[], None],
) -> RestorePlan:
    """Write the start of a new execution to the decision log; return its restore plan.

    All older executions must be fenced. `expect_ours` raises where another driver has taken the
    flow, and is asked last. A record that still comes too late has too small an execution id, by
    which readers of the decision log discard it.
    """
    plan, options, names = prepared.plan, prepared.options, prepared.names
    checkpoint = None if found is None else found.checkpoint
    joint = prepared.joint
    while True:
        restored = RestorePlan.of(plan, options.workers, checkpoint, joint=joint)
        start = replace(restored.start_decision, topics=prepared.topics)
        if found is not None and start.checkpoint is not None:
            oldest = min(found.earlier, default=found.offset)
            start = replace(start, checkpoint=found.offset, oldest=oldest)
        expect_ours()
        decisions.write(to_bytes(prepared.execution, start), options.heartbeat_timeout)
        decided = [*decided_before(options.kafka, names, prepared.execution)]
        # An older execution may have decided more meanwhile; then the start is written again.
        if joint == (joint := last_joint_decision(decided)):
            break
    history = needed_history(plan, options.kafka, names, prepared.execution, decided)
    changes = [*logic_changes(decided)]
    restored = RestorePlan.of(plan, options.workers, checkpoint, history, joint)
    if redefined := redefinitions(plan, changes, restored.time):
        decision = to_bytes(prepared.execution, LogicDecision(tuple(redefined)))
        decisions.write(decision, options.heartbeat_timeout)
    restored = restored.with_logic(plan, [*changes, *redefined])
    return restored.with_reconfigurations(joint_decisions(decided))


def decided_before(
    settings: Settings, names: TopicNames, execution: ExecutionId
) -> Iterator[Written]:
    """Yield the decisions up to the start of an execution, and the changes of logic that its start
    has made. The topic is read once the first one is asked for."""
    yield from _up_to_redefinitions(read_decisions(settings, names.decisions), execution)


def last_joint_decision(decided: Iterable[Written]) -> JointDecision | None:
    """Return the last joint decision of some decisions, or None."""
    found = joint_decisions(decided)
    return found[-1] if found else None


def _up_to_redefinitions(decided: Iterable[Written], execution: ExecutionId) -> Iterator[Written]:
    """Yield the decisions up to the start of an execution, and those of the start itself."""
    remaining = iter(decided)
    yield from up_to_start(remaining, execution)
    for author, decision in remaining:
        if author == execution and isinstance(decision, LogicDecision) and decision.by_start:
            yield author, decision


def needed_history(
    plan: Plan,
    settings: Settings,
    names: TopicNames,
    execution: ExecutionId,
    decided: Iterable[Written],
) -> History:
    """Return what a started execution needs to know of earlier executions, given the decisions
    before it.

    A flow that delivers at least once needs no commit markers. It needs moves of bins only where
    records apply as they arrive: there the moves tell which records were ahead (`Migrator.resume`).
    It needs no assignments of partitions, because its sources may have other numbers by now.
    """
    if plan.flow.delivery == "exactly_once":
        markers = (one for one in read_markers(settings, names) if one.execution != execution)
        return History(plan.flow.space, decided, markers)
    if not plan.processing_inputs:
        return NO_HISTORY
    return History(
        plan.flow.space, (one for one in decided if not isinstance(one[1], ReassignPartition))
    )


def full_history(plan: Plan, settings: Settings, names: TopicNames) -> History:
    """Return the history of all executions."""
    with open_concurrently() as reading:
        decided = reading.ask(lambda: read_decisions(settings, names.decisions))
        markers = read_markers(settings, names)
        return History(plan.flow.space, decided.result(), markers)


def read_markers(settings: Settings, names: TopicNames) -> Iterator[CommitMarker]:
    """Read all commit markers of all executions."""
    return map(CommitMarker.from_bytes, read_all(settings, names.commit_markers))


def up_to_start(decided: Iterable[Written], execution: ExecutionId) -> Iterator[Written]:
    """Yield the decisions up to the start of an execution, and that start."""
    for one in decided:
        yield one
        if one[0] == execution:
            return


def read_decisions(settings: Settings, topic: str) -> Iterator[Written]:
    """Read all decisions of all executions from the decisions topic."""
    return map(from_bytes, read_all(settings, topic))


def last_sources(settings: Settings, names: TopicNames) -> Sequence[str]:
    """Return the sources of the last execution, by number; () before the first."""
    start = CheckpointIndex.of(read_decisions(settings, names.decisions)).start
    return () if start is None else start.sources


def commands_done(decided: Iterable[Written]) -> CommandsDoneDecision | None:
    """Return which commands of the control topic are done.

    None means that the decision log does not say. Decisions that an execution writes after the
    start of a later one do not count.

    >>> one, other = ExecutionId(5), ExecutionId(6)
    >>> start = StartDecision(0, (), 1)
    >>> decided = [(one, start), (one, CommandsDoneDecision(4)), (other, start)]
    >>> late = [*decided, (other, CommandsDoneDecision(7)), (one, CommandsDoneDecision(9))]
    >>> [done and done.offset for done in map(commands_done, (decided, late, []))]
    [4, 7, None]
    """
    last, done = None, None
    for execution, one in effective(decided):
        match one:
            case StartDecision():
                last = execution
            case CommandsDoneDecision() if execution == last:
                done = one
    return done


def resume_commands(
    prepared: PreparedFlow,
    control: ControlTopic,
    decisions: DecisionTopic,
    done: CommandsDoneDecision | None,
    answered: Collection[int] = (),
) -> CommandsDoneDecision:
    """Let a new execution read the commands that are not done; return which are.

    `done` says which this driver has done itself; None where it has not run yet. The commands at
    the `answered` offsets have had their final answers, so they are done as well: a driver may have
    died before the decision log said so.
    """
    settings, execution = prepared.options.kafka, prepared.execution
    if done is None:
        decided = read_decisions(settings, prepared.names.decisions)
        done = commands_done(up_to_start(decided, execution))
    resumed = control.start(None if done is None else done.with_done(answered))
    if resumed != done:
        decisions.write(to_bytes(execution, resumed))
    return resumed


def used_worker_ids(decided: Iterable[Written]) -> set[WorkerId]:
    """Return the ids of all workers of all executions. A command may skip many.

    >>> one = ExecutionId(1)
    >>> start, join = StartDecision(0, (), 2), JoinDecision(WorkerId(999), 5)
    >>> sorted(used_worker_ids([(one, start), (one, join)]))
    [0, 1, 999]
    """
    used = set[WorkerId]()
    for _, decision in decided:
        match decision:
            case StartDecision(workers=workers):
                used.update(map(WorkerId, range(workers)))
            case JoinDecision(worker):
                used.add(worker)
    return used


def fence(settings: Settings, prefix: str, flow: str, workers: Iterable[WorkerId]) -> None:
    """Fence some workers of a flow: none of them commits anything any more."""
    ids = [transactional_id(prefix, flow, worker) for worker in workers]
    with open_concurrently() as fencing:
        for fenced in [fencing.ask(partial(client.transactional, settings, id)) for id in ids]:
            fenced.result()
