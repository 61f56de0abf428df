"""How a life of a flow begins: others are ended for good, then it is read what they have left.

Guarantees I8: first whoever may still commit is fenced off, then this life's beginning is written
to the journal, and only then are marks and decisions read, up to that very place; what an earlier
life decides later counts for nobody. Cost: some 70 ms for all who may still commit, and what there
is to be read.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from meander.app.common.concurrent import side_by_side
from meander.app.flow.preflight import PreparedFlow
from meander.app.recovery.checkpoint_index import (
    Known,
    chosen,
    earlier,
    expect_kept,
    kept,
    newest,
    savepoints,
)
from meander.app.recovery.decision_log import from_bytes, to_bytes
from meander.connectors.kafka import client
from meander.connectors.kafka.client import Settings
from meander.connectors.kafka.sink.transactions import transactional_id
from meander.connectors.kafka.source.lost_records import SKIP, Lost
from meander.connectors.kafka.source.source import KafkaSource, gone
from meander.connectors.topics import checkpoints
from meander.connectors.topics.control import ControlTopic, DecisionTopic
from meander.connectors.topics.full_read import whole
from meander.connectors.topics.topics import Names
from meander.dataflow.api.plan import Plan
from meander.dataflow.checkpoint.compatibility import come_twice, expect_fits, misplaced
from meander.dataflow.checkpoint.restore_plan import RestorePlan, without_sent_results
from meander.dataflow.control.decisions import Begins, Joins, Obeys
from meander.dataflow.control.partition_handoff import ReassignPartition
from meander.dataflow.exactly_once.commit_history import NO_HISTORY, History, Written, effective
from meander.dataflow.exactly_once.commit_markers import CommitMarker
from meander.schemas.log_lines import LineLogger
from meander.state.checkpoint.checkpoint import BEGINNING, Checkpoint
from meander.state.keys.ids import ExecutionId, WorkerId

log = LineLogger(__name__)


class Newest(NamedTuple):
    """The checkpoint that a flow starts from."""

    offset: int
    checkpoint: Checkpoint
    savepoints: dict[int, Checkpoint]
    """All that there are, by offset."""
    earlier: dict[int, Checkpoint]
    """What there is to go back to besides, by offset, the oldest first."""
    last: int
    """The greatest number that a checkpoint has."""

    @property
    def kept(self) -> dict[int, Checkpoint]:
        """All that stay as the flow starts, by offset."""
        return self.earlier | {self.offset: self.checkpoint} | self.savepoints


def end_others(prepared: PreparedFlow) -> None:
    """Who works in an earlier life commits nothing any more."""
    options = prepared.options
    if prepared.plan.flow.delivery == "exactly_once":
        workers = registered(journal(options.kafka, prepared.names.decisions))
        fence(options.kafka, options.prefix, prepared.flow, workers)


def newest_checkpoint(
    prepared: PreparedFlow, wanted: str | None = None, history: History = NO_HISTORY
) -> Newest | None:
    """The checkpoint that the flow starts from, the newest or that of a name or number; None where
    it starts without states. Raises SetupError where it cannot start from it, also because of what
    earlier lives have left behind."""
    settings, topic = prepared.options.kafka, prepared.names.checkpoints
    known = Known.by(journal(settings, prepared.names.decisions))
    with checkpoints.reading(settings, prepared.names) as there:
        among = kept(there, known)
        if wanted is None:
            found = newest(there, known, prepared.flow, topic)
            if found is None:
                return None
            offset, checkpoint = found
        else:
            if not there.last(1):
                expect_kept(known, prepared.flow, topic)
            offset = chosen(among, known, wanted)
            checkpoint = among.found[offset]
        most = prepared.plan.flow.checkpoints.retained - 1
        older = {} if checkpoint.cut == BEGINNING else earlier(among, known, offset, most)
        last, named = there.number, savepoints(there, known)
    plan, options = prepared.plan, prepared.options
    outside, lost = unread(settings, plan, checkpoint)
    if known.begun is not None:
        outside += misplaced(known.begun, plan)
        sources = [one.name for one in plan.sources]
        outside += other_topics(known.begun, dict(zip(sources, prepared.topics, strict=True)))
    left = replace(checkpoint, cut=without_sent_results(plan, checkpoint.cut, history))
    twice = [] if options.allow_nondeterminism else come_twice(checkpoint, plan, history)
    before = [one.number for one in older.values()]
    if not options.skip_lost:
        outside += lost
    # Workers pass over what is lost when they open their sources, and say what it is then.
    skip = SKIP if lost and not options.skip_lost else ""
    expect_fits(
        left, plan, options.allow_dropped_state, outside, twice, max(before, default=None), skip
    )
    log.info(
        "checkpoint_selected",
        number=checkpoint.number,
        operators=",".join(sorted(checkpoint.operators)),
    )
    return Newest(offset, checkpoint, named, older, last)


def unread(settings: Settings, plan: Plan, checkpoint: Checkpoint) -> tuple[list[str], list[str]]:
    """Where source topics do not hold any more what comes next; where retention alone has deleted
    it, apart from all else."""
    topics = {one.name: one.spec.topic for one in plan.sources if isinstance(one.spec, KafkaSource)}
    left = defaultdict[str, dict[int, int]](dict)
    for one in checkpoint.cut.positions:
        if one.source in topics:
            left[topics[one.source]][one.partition] = one.offset
    found = [one for topic, places in left.items() for one in gone(settings, topic, places)]
    lost = [str(one) for one in found if isinstance(one, Lost) and one.expired]
    return [said for said in map(str, found) if said not in lost], lost


def other_topics(begun: Begins, topics: Mapping[str, str]) -> list[str]:
    """Sources that read something else than in the life that has begun last, as offsets there say
    nothing of it; `topics` are what they read now, by source.

    >>> begun = Begins(0, (), 1, sources=("a", "b"), topics=("lines 1", "words 2"))
    >>> other_topics(begun, {"a": "lines 1", "b": "words 3", "c": "new 4"})
    ["source 'b' has read topic 'words' of id 2, and is to read topic 'words' of id 3"]
    """
    had = dict(zip(begun.sources, begun.topics, strict=False))
    return [
        f"source {name!r} has read {_said(had[name])}, and is to read {_said(topic)}"
        for name, topic in topics.items()
        if had.get(name, topic) != topic
    ]


def _said(topic: str) -> str:
    name, _, id = topic.partition(" ")
    return f"topic {name!r} of id {id}" if topic else "no topic"


def begin(
    prepared: PreparedFlow,
    found: Newest | None,
    decisions: DecisionTopic,
    expect_ours: Callable[[], None],
) -> RestorePlan:
    """A new life, from the newest checkpoint, once all others have ended.

    `expect_ours` raises where another driver has taken the flow. It is asked last of all: a record
    that comes too late after that, readers of the journal tell by its execution.
    """
    plan, options, names = prepared.plan, prepared.options, prepared.names
    checkpoint = None if found is None else found.checkpoint
    begins = replace(
        RestorePlan.of(plan, options.workers, checkpoint).start_decision, topics=prepared.topics
    )
    if found is not None and begins.checkpoint is not None:
        oldest = min(found.earlier, default=found.offset)
        begins = replace(begins, checkpoint=found.offset, oldest=oldest)
    expect_ours()
    decisions.write(to_bytes(prepared.execution, begins), options.heartbeat_timeout)
    history = history_of(plan, options.kafka, names, prepared.execution)
    return RestorePlan.of(plan, options.workers, checkpoint, history)


def history_of(plan: Plan, settings: Settings, names: Names, life: ExecutionId) -> History:
    """What lives before one have left behind that has begun, as far as it counts in that.

    Who delivers at least once asks for no marks, and for moves of bins only where records apply as
    they arrive: there they tell what was ahead of what (`Migrator.resume`). It asks for none of the
    partitions that had come to its topics: its sources may have other numbers by now.
    """
    if plan.flow.delivery == "exactly_once":
        return left_behind(plan, settings, names, life)
    if not plan.arrivals:
        return NO_HISTORY
    decided = until(journal(settings, names.decisions), life)
    return History(
        plan.flow.space, (one for one in decided if not isinstance(one[1], ReassignPartition))
    )


def left_behind(
    plan: Plan, settings: Settings, names: Names, life: ExecutionId | None = None
) -> History:
    """What lives before one have left behind, if that has begun; else all lives."""
    with side_by_side() as reading:
        decided = reading.ask(lambda: journal(settings, names.decisions))
        marks = map(CommitMarker.from_bytes, whole(settings, names.marks))
        begun = until(decided.result(), life)
    return History(plan.flow.space, begun, (mark for mark in marks if mark.execution != life))


def until(decided: Iterable[Written], life: ExecutionId | None) -> Iterator[Written]:
    """What was decided up to the beginning of a life, and that; of None all."""
    for one in decided:
        yield one
        if one[0] == life:
            return


def journal(settings: Settings, topic: str) -> Iterator[Written]:
    """All that has been decided, in all lives."""
    return map(from_bytes, whole(settings, topic))


def obeyed(decided: Iterable[Written]) -> int | None:
    """The offset of the control topic before which all commands have been dealt with; None where
    the journal does not say. What an execution tells behind the beginning of a later one counts for
    nothing.

    >>> one, other = ExecutionId(5), ExecutionId(6)
    >>> journal = [(one, Begins(0, (), 1)), (one, Obeys(4)), (other, Begins(0, (), 1))]
    >>> obeyed(journal), obeyed([*journal, (other, Obeys(7)), (one, Obeys(9))]), obeyed([])
    (4, 7, None)
    """
    last, place = None, None
    for life, one in effective(decided):
        match one:
            case Begins():
                last = life
            case Obeys(offset) if life == last:
                place = offset
    return place


def take_up(
    prepared: PreparedFlow, control: ControlTopic, decisions: DecisionTopic, known: int | None
) -> int:
    """Have a new execution obey commands from where earlier ones have stopped, `known` in the
    driver that has lived through them; return that offset."""
    settings, life = prepared.options.kafka, prepared.execution
    place = known
    if place is None:
        place = obeyed(until(journal(settings, prepared.names.decisions), life))
    begins = control.begin(place)
    if begins != place:
        decisions.write(to_bytes(life, Obeys(begins)))
    return begins


def registered(decided: Iterable[Written]) -> set[WorkerId]:
    """Return the numbers that workers have had, in whichever life. A command may skip many.

    >>> life = ExecutionId(1)
    >>> sorted(registered([(life, Begins(0, (), 2)), (life, Joins(WorkerId(999), 5))]))
    [0, 1, 999]
    """
    known = set[WorkerId]()
    for _, decision in decided:
        match decision:
            case Begins(workers=workers):
                known.update(map(WorkerId, range(workers)))
            case Joins(worker):
                known.add(worker)
    return known


def fence(settings: Settings, prefix: str, flow: str, workers: Iterable[WorkerId]) -> None:
    """None of these workers commits anything any more."""
    ids = [transactional_id(prefix, flow, worker) for worker in workers]
    with side_by_side() as fencing:
        for fenced in [fencing.ask(partial(client.transactional, settings, id)) for id in ids]:
            fenced.result()
