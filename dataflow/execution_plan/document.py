"""An execution plan from and to the document that a person writes.

Guarantees that the document of a plan, applied to that plan, changes nothing. Cost: O(bins).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import chain
from typing import TypeVar

from meander.dataflow.control.colocation import DEFAULT_GROUP
from meander.dataflow.control.logic_change import LogicUpdate
from meander.dataflow.control.resources import MIN_MEMORY, Resources, size_of, size_text
from meander.dataflow.execution_plan.bin_ranges import numbers, ranges
from meander.dataflow.execution_plan.plan import ExecutionPlan, PlanError
from meander.schemas.execution_plan import NewLogic, PlanDocument, WorkerResources
from meander.state.keys.ids import WorkerId, member_name

T = TypeVar("T")


def document_of(plan: ExecutionPlan) -> PlanDocument:
    """Return the document of a plan.

    >>> plan = ExecutionPlan({WorkerId(0): Resources("a")}, bins={"": (WorkerId(0),) * 4})
    >>> document_of(plan).sections
    {'workers': {'0': {'host': 'a'}}, 'operators': {}, 'bins': {'0': '0-3'}, 'partitions': {}}
    """
    sources = dict.fromkeys(source for source, _ in plan.partitions)
    alone = {group: its for group, its in plan.bins.items() if group != DEFAULT_GROUP}
    default = plan.bins.get(DEFAULT_GROUP)
    return PlanDocument(
        workers={str(worker): _written(its) for worker, its in plan.workers.items()},
        operators={
            operator: NewLogic.model_validate({"logic": one.name, "parameters": one.values})
            for operator, one in plan.logic.items()
        },
        bins=None if default is None else _shares(dict(enumerate(default))),
        bins_of={group: _shares(dict(enumerate(its))) for group, its in alone.items()} or None,
        partitions={
            source: _shares({n: one for (of, n), one in plan.partitions.items() if of == source})
            for source in sources
        },
    )


def updated(plan: ExecutionPlan, document: PlanDocument) -> ExecutionPlan:
    """Return a plan with the sections of a document in place of its own.

    Raises PlanError where a bin or partition has no worker, or two, or something is unknown.

    >>> plan = ExecutionPlan({WorkerId(0): Resources()}, bins={"": (WorkerId(0),) * 4})
    >>> updated(plan, PlanDocument.model_validate({"workers": {"0": {}, "1": {}}})).bins
    {'': (0, 0, 1, 1)}
    >>> updated(plan, PlanDocument.model_validate({"bins": {"0": "0-2"}}))
    Traceback (most recent call last):
    meander.dataflow.execution_plan.plan.PlanError: bin 3: it has no owner; give it to one worker.
    """
    if document.workers is not None:
        wanted = {WorkerId(int(one)): its for one, its in document.workers.items()}
        plan = plan.scaled([*wanted])
        plan = replace(plan, workers={one: _resources(one, its) for one, its in wanted.items()})
    for operator, new in (document.operators or {}).items():
        plan = plan.with_update(operator, LogicUpdate(new.logic, new.parameters))
    groups = dict(document.bins_of or {})
    if document.bins is not None:
        groups[DEFAULT_GROUP] = document.bins
    bins = {group: _owners(plan, group, its) for group, its in groups.items()}
    partitions = dict(plan.partitions)
    for source, readers in (document.partitions or {}).items():
        partitions |= _readers(plan, source, readers)
    return replace(plan, bins={**plan.bins, **bins}, partitions=partitions)


def with_workers(document: PlanDocument, names: Mapping[str, str]) -> PlanDocument:
    """Return a document in which workers have other ids.

    >>> document = PlanDocument.model_validate({"workers": {"3": {}}, "bins": {"3": "0-7"}})
    >>> with_workers(document, {"3": "1"}).sections
    {'workers': {'1': {}}, 'bins': {'1': '0-7'}}
    """

    def renamed(its: Mapping[str, T] | None) -> dict[str, T] | None:
        return None if its is None else {names.get(one, one): of for one, of in its.items()}

    def each(its: Mapping[str, Mapping[str, str]] | None) -> dict[str, dict[str, str]] | None:
        return None if its is None else {name: renamed(of) or {} for name, of in its.items()}

    return document.model_copy(
        update={
            "workers": renamed(document.workers), "bins": renamed(document.bins),
            "bins_of": each(document.bins_of), "partitions": each(document.partitions),
        }
    )  # fmt: skip


def workers_of(document: PlanDocument) -> set[int]:
    """Return the ids of all workers that a document names.

    >>> workers_of(PlanDocument.model_validate({"partitions": {"readings": {"2": "0", "5": ""}}}))
    {2, 5}
    """
    alone = (document.bins_of or {}).values(), (document.partitions or {}).values()
    named: list[Iterable[str]] = [document.workers or (), document.bins or (), *chain(*alone)]
    return {int(one) for its in named for one in its}


def _owners(plan: ExecutionPlan, group: str, shares: Mapping[str, str]) -> tuple[WorkerId, ...]:
    count = len(plan.owners_of(group))
    of = f" of operator {group!r}" if group else ""
    found = _assigned(shares, count, "bin", of)
    missing = set(range(count)) - found.keys()
    if missing:
        raise PlanError(f"bin {min(missing)}{of}", "it has no owner", "give it to one worker")
    return tuple(found[bin] for bin in range(count))


def _readers(
    plan: ExecutionPlan, source: str, shares: Mapping[str, str]
) -> dict[tuple[str, int], WorkerId]:
    own = {number for of, number in plan.partitions if of == source}
    if not own:
        known = ", ".join(map(repr, dict.fromkeys(of for of, _ in plan.partitions)))
        remedy = f"name one of {known}" if known else "leave its partitions out"
        raise PlanError(f"source {source!r}", "the flow does not read it", remedy)
    found = _assigned(shares, max(own) + 1, "partition", f" of source {source!r}")
    if own != found.keys():
        raise PlanError(
            f"source {source!r}",
            f"the plan names other partitions than the flow reads ({ranges(own)})",
            "give each of them to one worker",
        )  # fmt: skip
    return {(source, number): worker for number, worker in found.items()}


def _assigned(shares: Mapping[str, str], count: int, noun: str, of: str) -> dict[int, WorkerId]:
    """Return the worker of each bin or partition. Raises PlanError where one has two."""
    found = dict[int, WorkerId]()
    for worker, text in shares.items():
        try:
            some = [*numbers(text, count)]
        except ValueError as error:
            raise PlanError(
                f"the {noun}s{of} of worker {worker}", str(error), "write such as 0-127, 200"
            ) from None
        for number in some:
            other = found.setdefault(number, WorkerId(int(worker)))
            if other != int(worker):
                raise PlanError(
                    f"{noun} {number}{of}", f"workers {other} and {worker} both get it",
                    "give it to one of them",
                )  # fmt: skip
    return found


def _shares(owners: Mapping[int, WorkerId]) -> dict[str, str]:
    shares: dict[WorkerId, list[int]] = {}
    for number, worker in owners.items():
        shares.setdefault(worker, []).append(number)
    return {str(worker): ranges(some) for worker, some in sorted(shares.items())}


def _written(resources: Resources) -> WorkerResources:
    return WorkerResources(
        host=resources.host or None,
        executor=resources.executor or None,
        cores=resources.cores if resources.cores > 1 else None,
        memory=size_text(resources.memory) if resources.memory else None,
    )


def _resources(worker: WorkerId, wanted: WorkerResources) -> Resources:
    memory = 0 if wanted.memory is None else size_of(wanted.memory)
    if wanted.memory is not None and memory < MIN_MEMORY:
        raise PlanError(
            member_name(worker), f"its memory of {wanted.memory} is too small",
            f"give it {size_text(MIN_MEMORY)} or more, or leave it out for the flow's settings",
        )  # fmt: skip
    return Resources(wanted.host or "", wanted.executor or "", wanted.cores or 1, memory)
