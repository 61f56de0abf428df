"""The flow whose plan changes: two keyed counts that move alone, one result per record.

A record is a key of `load.KEY` bytes and its identity, which tells the operator; its result
repeats the identity. Only the operator `affected` has bins that move and logic that changes.
MEANDER_BENCH_RESTORED gives bins of it to a worker at a restart, such as `1:64-127`.
"""

from __future__ import annotations

from dataclasses import replace

from benchmarks.control.identity import is_affected
from benchmarks.counting import asked, key_of
from benchmarks.load import KEY
from meander import ChangeableLogic, Checkpointing, Flow, KafkaSink, KafkaSource
from meander.dataflow.api.plan import Plan
from meander.dataflow.checkpoint.restore_plan import RestorePlan
from meander.dataflow.control.decisions import JointDecision
from meander.dataflow.exactly_once.commit_history import NO_HISTORY, History
from meander.dataflow.execution_plan.bin_ranges import numbers
from meander.state.checkpoint.checkpoint import Checkpoint
from meander.state.keys.ids import WorkerId


class Count(ChangeableLogic, frozen=True):
    """A count; a result repeats the identity of its record."""

    def init(self) -> int:
        """The state of a new key."""
        return 0

    def step(self, count: int, record: bytes) -> tuple[int, bytes]:
        """One more."""
        return count + 1, b"%d%b" % (count + 1, record[KEY:])


class Weighted(Count, frozen=True):
    """A count in which each record counts as several."""

    weight: int = 2

    def step(self, count: int, record: bytes) -> tuple[int, bytes]:
        """Some more."""
        return count + self.weight, b"%d%b" % (count + self.weight, record[KEY:])


def operator_of(record: bytes) -> str:
    """The operator that gets a record; what is only to fill states is affected."""
    identity = record[KEY:]
    return "affected" if not identity or is_affected(int(identity)) else "unaffected"


def restored_at(worker: int, bins: str) -> None:
    """Have a worker own bins of `affected` after each restart, as if the checkpoint said so."""
    restored = RestorePlan.of

    def of(
        plan: Plan, workers: int, checkpoint: Checkpoint | None = None,
        history: History = NO_HISTORY, joint: JointDecision | None = None,
    ) -> RestorePlan:  # fmt: skip
        found = restored(plan, workers, checkpoint, history, joint)
        owners, first = [*found.owners], plan.groups.first_bin("affected")
        for bin in numbers(bins, plan.groups.count):
            owners[first + bin] = WorkerId(worker)
        return replace(found, owners=tuple(owners))

    RestorePlan.of = staticmethod(of)  # type: ignore[method-assign]


if asked("RESTORED"):
    worker, _, its_bins = asked("RESTORED").partition(":")
    restored_at(int(worker), its_bins)
flow = Flow("bench", checkpoints=Checkpointing(None, "aligned"))
records = flow.source(KafkaSource(asked("SOURCE", "in"), value="bytes"), "records")
affected, unaffected = records.split(operator_of, "affected", "unaffected")
out = KafkaSink(asked("PREFIX") + "out", "bytes", origin=False, time="wall")
changed = affected.key_by(key_of).fold("affected", Count(), colocate=False)
unchanged = unaffected.key_by(key_of).fold("unaffected", Count(), colocate=False)
changed.sink(out, "changed")
unchanged.sink(out, "unchanged")
