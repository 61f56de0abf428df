"""The join of a pattern in a flow: its steps as operators, each extension under flow control.

Guarantees the prefixes that bind all nodes, with the diffs of the changes that brought them.
Invariant: the flow control of an extension lies in that of the extension before it (Faucet, figure
3). Cost: an exchange and a lookup per step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np

from meander.dataflow.api.collection import ArrangedCollection, Collection
from meander.dataflow.api.extensible import Extensible
from meander.dataflow.collections.dictionary import Dictionary
from meander.dataflow.flow_control.batch_size import Size
from meander.dataflow.flow_control.flow_control import flow_control
from meander.dataflow.flow_control.ready_rows import Weigh, each_one
from meander.dataflow.generic_join.join_plan import JoinPlan
from meander.dataflow.generic_join.lookup import Lookup, Step
from meander.dataflow.generic_join.prefix_stream import PrefixStream
from meander.dataflow.generic_join.prefixes import Prefixes, proposals_of
from meander.dataflow.operators.collection.stateless import Pass
from meander.dataflow.operators.collection.updates import UpdateCoding
from meander.dataflow.operators.custom import OperatorServices
from meander.dataflow.records.batch import Batch

Rows = TypeVar("Rows", bound=Extensible)


@dataclass(frozen=True, slots=True)
class GenericJoin:
    """A join over edges that are arranged by start, and where it needs that by end."""

    name: str
    plan: JoinPlan
    arrangements: Sequence[ArrangedCollection]
    batch: Size | None
    """The size of batches; None for a join without flow control."""
    in_flight: int

    def prefixes(self) -> PrefixStream:
        """Add the join to the flow, and return the prefixes that bind all nodes."""
        return self._controlled(self.arrangements[0], "edges", self._from_edges)

    def _from_edges(self, edges: Collection) -> PrefixStream:
        seeds = edges.operator(f"{self.name} seeds", partial(_build_seeds, plan=self.plan))
        prefixes = PrefixStream(seeds._flow, seeds._at)
        for number, check in enumerate(self.plan.checks, 1):
            prefixes = self._looked_up(prefixes, f"check {number}", check)
        return self._extended(prefixes, 1)

    def _extended(self, prefixes: PrefixStream, number: int) -> PrefixStream:
        """Return the prefixes with all nodes, from those before an extension."""
        if number > len(self.plan.extensions):
            return prefixes
        extension, name = self.plan.extensions[number - 1], f"extension {number}"
        for count in extension.counts:
            prefixes = self._looked_up(prefixes, f"{name} count {count.number + 1}", count)

        def proposed(counted: PrefixStream) -> PrefixStream:
            found = self._looked_up(counted, f"{name} propose", extension.propose, proposals_of)
            for n, intersect in enumerate(extension.intersects, 1):
                found = self._looked_up(found, f"{name} intersect {n}", intersect)
            return self._extended(found, number + 1)

        return self._controlled(prefixes, name, proposed, proposals_of)

    def _controlled(
        self,
        rows: Rows,
        name: str,
        rest: Callable[[Rows], PrefixStream],
        weigh: Weigh = each_one,
    ) -> PrefixStream:
        if self.batch is None:
            return rest(rows)
        with flow_control(
            rows, batch=self.batch, in_flight=self.in_flight, weigh=weigh,
            name=f"{self.name} {name}",
        ) as inner:  # fmt: skip
            return rest(inner).leave()

    def _looked_up(
        self, prefixes: PrefixStream, name: str, step: Step, weigh: Weigh = each_one
    ) -> PrefixStream:
        def build(services: OperatorServices) -> Lookup:
            return Lookup(services, step, weigh)

        return prefixes.by_key().operator(
            f"{self.name} {name}", build, arrangements=self.arrangements
        )


def _build_seeds(services: OperatorServices, plan: JoinPlan) -> Pass:
    """Return the operator that makes each change of an edge a prefix of every query."""
    copies, coding = len(plan.queries), UpdateCoding(Dictionary(), key=False, value=False)
    choices = np.arange(copies) * plan.width

    def seeds(batch: Batch) -> Batch:
        starts, ends, diffs = coding.columns_of(batch)
        prefixes = Prefixes(
            np.tile(batch.times, copies),
            np.repeat(choices, len(batch)),
            (np.tile(starts, copies), np.tile(ends, copies)),
            np.tile(diffs, copies),
        )
        if plan.distinct:
            prefixes = prefixes.take(np.flatnonzero(prefixes.is_new))
        return prefixes.batch(plan.first.keys(prefixes))

    return Pass([services.input], services.output, seeds)
