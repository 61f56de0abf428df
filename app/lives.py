"""How a life of a flow begins: others are ended for good, then it is read what they have left.

Guarantees I8: first whoever may still commit is fenced off, then this life's beginning is written
to the journal, and only then are marks and decisions read, up to that very place; what an earlier
life decides later counts for nobody. Cost: some 70 ms for all who may still commit, and what there
is to be read.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import takewhile

from app.journal import from_bytes, to_bytes
from app.prepare import Newest, Prepared
from connectors import client
from connectors.client import Settings
from connectors.control import Decisions
from connectors.topics import Names
from connectors.transactions import transactional_id
from connectors.whole import whole
from dataflow.checkpoint.start import Start
from dataflow.decisions import Begins, Joins
from dataflow.once.history import NO_HISTORY, History, Written
from dataflow.once.marks import Mark
from dataflow.plan import Plan
from state.ids import Incarnation, WorkerId

AT_ONCE = 8
"""Ids that are fenced off side by side."""


def begin(prepared: Prepared, found: Newest | None) -> Start:
    """A new life, from the newest checkpoint; those before it commit nothing any more."""
    plan, options, names = prepared.plan, prepared.options, prepared.names
    checkpoint = None if found is None else found.checkpoint
    if plan.flow.delivery == "exactly_once":
        _fence(prepared, _registered(journal(options.kafka, names.decisions)))
    start = Start.of(plan, options.workers, checkpoint)
    begins = Begins(start.time, start.owners, options.workers)
    with contextlib.closing(Decisions(options.kafka, names.decisions)) as decisions:
        decisions.write(to_bytes(prepared.incarnation, begins))
    history = history_of(plan, options.kafka, names, prepared.incarnation)
    return Start.of(plan, options.workers, checkpoint, history)


def history_of(plan: Plan, settings: Settings, names: Names, life: Incarnation) -> History:
    """What lives before this one have left behind, which has begun."""
    if plan.flow.delivery == "at_least_once":
        return NO_HISTORY
    before = takewhile(lambda one: one[0] != life, journal(settings, names.decisions))
    marks = map(Mark.from_bytes, whole(settings, names.marks))
    return History(plan.flow.space, before, (mark for mark in marks if mark.incarnation < life))


def journal(settings: Settings, topic: str) -> Iterator[Written]:
    """All that has been decided, in all lives."""
    return map(from_bytes, whole(settings, topic))


def _registered(decided: Iterable[Written]) -> int:
    """How many numbers workers have had, in whichever life."""
    known = [0]
    for _, decision in decided:
        match decision:
            case Begins(workers=workers):
                known.append(workers)
            case Joins(worker):
                known.append(worker + 1)
    return max(known)


def _fence(prepared: Prepared, workers: int) -> None:
    options = prepared.options
    ids = [
        transactional_id(options.prefix, prepared.flow, WorkerId(worker))
        for worker in range(workers)
    ]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for _ in pool.map(partial(client.transactional, options.kafka), ids):
            pass
