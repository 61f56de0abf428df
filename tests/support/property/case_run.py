"""A random case on simulated workers, and the single-threaded reference that it has to equal."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from meander import Flow, KeyedStream
from meander.dataflow.api.nodes import Guarantee
from meander.dataflow.api.plan import Plan
from meander.dataflow.control.colocation import DEFAULT_GROUP
from meander.dataflow.control.command import Reconfigure
from meander.dataflow.control.decisions import Decision, JointDecision, LogicDecision, with_parts
from meander.dataflow.control.logic_change import LogicChange
from meander.dataflow.control.partition_handoff import ReassignPartition
from meander.dataflow.control.reassignment import Moves
from meander.dataflow.coordinator.coordinator import Coordinator
from meander.dataflow.coordinator.events import NotDecided
from meander.dataflow.migration.incremental_snapshots import Snapshots
from meander.dataflow.operators.buffer.spill import SpillBudget
from meander.dataflow.operators.keyed.operator import KeyedOperator
from meander.dataflow.operators.keyed.timer_queue import TIMER_BYTES
from meander.dataflow.records import loop_times
from meander.dataflow.runtime.worker import Worker
from meander.dataflow.simulation.in_memory import ListSink, ListSource
from meander.schemas.status import PlanInForce
from meander.state.encoding import codec
from meander.state.keys.bins import BinSpace
from meander.state.keys.ids import Bin
from meander.state.store.store import Databases
from meander.state.times.time import MIN_TIME, from_millis, to_millis
from meander.testing import Result, TestFlow
from tests.support.property import flows, intervals, reference, shapes, tabling, windowing
from tests.support.property.cases import TWO_SOURCES, Case
from tests.support.property.changing import Versions
from tests.support.property.flows import stages_of
from tests.support.property.reference import OWN, Dues, Record, Refusals, States, in_order
from tests.support.property.silences import silences_between_reads
from tests.support.sim.manual_flow import batchers, loops

SLOW = 0.02
WRITTEN = "written"
"""The sink of results."""
DIFFERS = "results are not the reference's"


def encoded(states: States) -> dict[str, dict[bytes, bytes]]:
    """Return the reference's states as a flow reports them."""
    return {
        name: {key: codec.encode(state) for key, state in keyed.items()}
        for name, keyed in states.items()
    }


NEAR = 0, 2 * TIMER_BYTES, 1 << 20
"""The bytes of near timers: none, a few and all."""


class CrampedFlow(TestFlow):
    """A simulated flow whose operators buffer no more records than the case allows."""

    swept = MIN_TIME
    """The greatest due time of states that any sweep may have removed."""

    def __init__(self, case: Case, flow: Flow, databases: Databases, namespace: int) -> None:
        self._room, self.disks = case.room, list[SpillBudget]()
        super().__init__(
            flow,
            case.workers,
            case.seed,
            commands=case.script,
            databases=databases,
            namespace=namespace,
        )
        compute_blockers(self.sim.coordinator)

    def _check_turns(self, worker: Worker) -> None:
        """Check the order of all queues after every turn of a worker."""
        step = worker.step

        def stepped() -> bool:
            worked = step()
            check_queues(worker)
            self.swept = max(self.swept, *swept_until(worker), MIN_TIME)
            return worked

        worker.step = stepped  # type: ignore[method-assign]

    def _build(self, *surroundings: Any) -> Worker:
        worker = super()._build(*surroundings)
        self._check_turns(worker)
        self.disks.append(worker.parts.operators.disk)
        for router in worker.parts.operators.exchanges:
            router._max_waiting = self._room
        for keyed in keyed_operators(worker):
            keyed._max_waiting = self._room
            keyed.timers.set_max_bytes(NEAR[self._room % len(NEAR)])
        for sink in worker.parts.operators.ordered_sinks:
            sink._most = self._room
        for loop in loops(worker):
            loop._max_waiting = self._room
        for batcher in batchers(worker):
            batcher._max_waiting = self._room
        return worker

    @property
    def spilled(self) -> bool:
        """Whether any record has been on disk; none is at the end."""
        assert not any(disk.used for disk in self.disks)
        return any(disk.written for disk in self.disks)


class CaseRun:
    """A run of one case on simulated workers, compared with the reference."""

    cramped = CrampedFlow
    delivery: Guarantee = "at_least_once"

    def __init__(self, case: Case) -> None:
        self.case = case
        self.raw, self.other_raw = ListSink(SLOW), ListSink(SLOW)
        self.sink = ListSink(SLOW, shapes.unwritable if case.kind == "faulty" else None)
        self.changes: Counter[str] = Counter()
        """How often each event came."""
        self.decided = list[LogicChange]()
        """The changes of logic."""
        self.versions = Versions()
        self.swept = MIN_TIME
        """The same of earlier executions."""
        self.dues: Dues = {}
        """When the reference's states expire."""
        self.begun: dict[tuple[str, int], int] = {}
        """The time from which each new partition of a source is read."""
        self.flow = Flow(
            "f",
            bins=case.bits,
            max_inflight=case.max_inflight,
            link_credit=case.link_credit,
            control_lead=case.control_lead,
            snapshot_interval=case.snapshot_interval,
            move_memory=case.move_memory,
            delivery=self.delivery,
            transaction_interval=0.002,
        )

    def build(self) -> None:
        """Define the flow."""
        source = self.source = self.flow.source(ListSource(self.case.partitions, self.case.options))
        source.sink(self.raw)
        other = None
        if self.case.kind in TWO_SOURCES:
            reverse = ListSource(self.case.partitions[::-1], self.case.options)
            second = self.flow.source(reverse, "other")
            second.sink(self.other_raw)
            other = second.key_by(shapes.key)
        if self.case.kind in flows.GENERATED:
            flows.defined(self.stages, source, source).sink(self.sink, WRITTEN)
        else:
            self.define(source.key_by(shapes.key), other).sink(self.sink, WRITTEN)

    @property
    def stages(self) -> tuple[flows.Stage, ...]:
        """The stages of a flow that is made of random ones."""
        return stages_of(self.case.seed, self.case.kind)

    def check(self, databases: Databases, namespace: int) -> None:
        """Run the case, and compare it with the reference."""
        self.build()
        run = self.cramped(self.case, self.flow, databases, namespace)
        with run, silences_between_reads():
            run.run()
            self.spilled = run.spilled
            self.changes = Counter(str(event["type"]) for event in run.events)
            added = [event for event in run.events if event["type"] == "partition_added"]
            self.begun = {
                (str(e["source"]), int(str(e["partition"]))): int(str(e["at"])) for e in added
            }
            assert len(self.begun) == len(added), "each new partition is given away once"
            self.note_decisions(run.sim.decisions)
            self.check_times(run)
            if self.case.kind == "arrival":
                self.check_arrival(run)
                self.check_refused(run, [])
            else:
                self.check_results(run)
            self.check_owners(run)
            self.check_commands(run)
            self.check_reconfigurations(run)
            self.check_timed(run)

    def note_decisions(self, decisions: Sequence[Decision]) -> None:
        """Note what the engine decided about logic."""
        parts = (part for one in decisions for part in with_parts(one))
        logic = (one for one in parts if isinstance(one, LogicDecision))
        self.decided = [change for one in logic for change in one.changes]

    def define(self, keyed: KeyedStream[Any], other: KeyedStream[Any] | None) -> KeyedStream[Any]:
        if self.case.kind == "windows":
            return windowing.define(self.case.seed, keyed)
        if self.case.kind == "intervals":
            return intervals.define(self.case.seed, keyed)
        if self.case.kind == "tables":
            assert other is not None
            return tabling.define(self.case.seed, self.case.bits, keyed, other)
        return shapes.define(self.case.kind, keyed, other)

    def expected(self) -> tuple[list[Record], States, Refusals]:
        records = self.records(self.raw)
        if self.case.kind == "faulty":
            results, states, refused = reference.faulty(records)
            unwritable = [one for one in results if shapes.unwritable(one.value)]
            refused += [(WRITTEN, one.value) for one in unwritable]
            return [one for one in results if one not in unwritable], states, refused
        if self.case.kind == "forgetting":
            results, states, self.dues = reference.forgetting(records)
            return results, states, []
        if self.case.kind == "windows":
            timed = [windowing.Timed(r.order, r.value, self.own_time(r)) for r in records]
            return windowing.expected(self.case.seed, timed)
        if self.case.kind == "intervals":
            timed = [windowing.Timed(r.order, r.value, self.own_time(r)) for r in records]
            return *intervals.expected(self.case.seed, timed), []
        if self.case.kind == "tables":
            others = self.records(self.other_raw)
            results, states, refused, self.dues = tabling.expected(
                self.case.seed, self.case.bits, records, others
            )
            return results, states, refused
        if self.case.kind in flows.GENERATED:
            looped = flows.Reference(self.stages, self.decided)
            self.versions = looped.versions
            return looped.run(records), looped.states, looped.refused
        return *reference.expected(self.case.kind, records, self.records(self.other_raw)), []

    # -- what the engine decided about times is checked by itself, then taken as given

    def records(self, raw: ListSink) -> list[Record]:
        return [
            Record((r.time, r.origin, r.partition, r.offset, r.index), r.value) for r in raw.results
        ]

    def own_time(self, record: Record) -> int:
        """The own time of a record of the first source."""
        entries = [*self.case.partitions, *self.case.grown("source")]
        return entries[record.order[2]][record.order[3]][0]

    def check_times(self, run: TestFlow) -> None:
        late_adjusted = self.late_adjusted(self.raw, self.case.partitions, "source")
        if self.case.kind in TWO_SOURCES:
            late_adjusted += self.late_adjusted(self.other_raw, self.case.partitions[::-1], "other")
        counted = sum((worker.counters for worker in run.workers), run.sim.counters)
        assert counted["late_adjusted"] == late_adjusted
        check_partitions(self.raw.results)
        check_partitions(self.other_raw.results)

    def late_adjusted(
        self, raw: ListSink, first: Sequence[Sequence[tuple[int, object]]], source: str
    ) -> int:
        # A partition that came after the others had ended has not been read.
        came = [
            records if (source, len(first) + n) in self.begun else []
            for n, records in enumerate(self.case.grown(source))
        ]
        partitions = [*first, *came]
        by_partition: dict[int, list[Result]] = defaultdict(list)
        for result in raw.results:
            by_partition[result.partition].append(result)
        late_adjusted = 0
        for p, entries in enumerate(partitions):
            got = sorted(by_partition[p], key=lambda r: r.offset)
            assert [r.offset for r in got] == list(range(len(entries))), "each record once (I3)"
            assert [r.value for r in got] == [value for _, value in entries]
            maximum, last = 0, self.begun.get((source, p), 0)
            for result, (ms, _) in zip(got, entries, strict=True):
                maximum = max(maximum, from_millis(ms))
                assert result.time >= max(maximum, last), "times never decrease"
                late_adjusted += to_millis(result.time) > ms
                last = result.time
        return late_adjusted

    # -- results, state, owners

    def check_results(self, run: CrampedFlow) -> None:
        results, states, refused = self.expected()
        got = [(record.order, record.value) for record in self.records(self.sink)]
        wanted = sorted(repr((r.order, r.value)) for r in results)
        assert sorted(map(repr, got)) == wanted, DIFFERS
        self.check_written(self.sink.results, results)
        self.check_states(run, states)
        self.check_refused(run, refused)

    def check_states(self, run: CrampedFlow, states: States) -> None:
        """Check that the final states are the reference's. An expired state may be left, or not."""
        found, wanted = self.versions.final(run.state()), encoded(states)
        for operator, dues in self.dues.items():
            furthest = max(worker.furthest for worker in run.workers)
            for key, due in dues.items():
                there = key in found[operator]
                assert not (there and due <= furthest), "an expired state is shown"
                if not there and due <= max(furthest, self.swept, run.swept):
                    wanted[operator].pop(key, None)
        assert found == wanted, "states are the reference's (I4, I5)"

    def check_written(self, results: Sequence[Result], wanted: Sequence[Record]) -> None:
        """Check that the written results of each lane stand in the reference's order.

        A sink that sorts by time knows no iterations; an outbox does not sort. Neither does a
        batcher know iterations of loops before it, so it may sort what they gave at one time.
        """
        if self.case.kind not in flows.GENERATED:
            check_written(results, wanted)
        elif WRITTEN in Plan(self.flow).ordered_sinks:
            check_written(results, [replace(one, lane=OWN) for one in in_order(wanted)])
        else:
            check_written(results, wanted, by_time=self.case.kind == "controlled")

    def check_refused(self, run: TestFlow, refused: Refusals) -> None:
        """Check that each refused record is a dead letter once, and no other record is (I5)."""
        letters = [(letter.operator, letter.value) for letter in run.dead_letters]
        wanted = sorted(map(repr, refused))
        assert sorted(map(repr, letters)) == wanted, "what is refused is set aside (I5)"
        self.changes["refused"] = len(letters)

    def check_owners(self, run: TestFlow) -> None:
        if not run.sim.plan.keyed:
            # Without a state the reader of a record answers it.
            return
        space = BinSpace(self.case.bits)
        answers = "c" if self.case.kind == "alone" else DEFAULT_GROUP
        accepted = [event for event in run.events if event["type"] == "accepted"]
        those = {event["id"] for event in accepted if event["operator"] == answers}
        moved: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for event in run.events:
            if event["type"] == "bin_moved" and event["id"] in those:
                moved[int(str(event["bin"]))].append((int(str(event["at"])), int(str(event["to"]))))
        for result in self.sink.results:
            if result.key is None:
                # A record without a key has no owner.
                continue
            bin = space.bin_of(result.key)
            owner: int = space.first_owner(Bin(bin), self.case.workers)
            for moved_at, target in sorted(moved[bin]):
                if moved_at <= result.time:
                    owner = target
            assert result.worker == owner, f"bin {bin} at {result.time} answered elsewhere (I2)"

    def check_commands(self, run: TestFlow) -> None:
        said = defaultdict(list)
        for event in run.events:
            said[event.get("id")].append(event["type"])
        for command in self.case.commands:
            first, *_, last = (*said[command.id], said[command.id][-1])
            if first == "rejected":
                assert said[command.id] == ["rejected"]
            else:
                assert first in ("accepted", "queued") and last in ("completed", "aborted")

    def check_reconfigurations(self, run: TestFlow) -> None:
        """Check that each reconfiguration is decided as a whole, or leaves everything as it is."""
        ended = [one for one in run.sim.events if isinstance(one, PlanInForce | NotDecided)]
        ends = {one.id: one for one in ended}
        assert len(ends) == len(ended), "each reconfiguration ends once"
        decided = {one.id: one for one in run.sim.decisions if isinstance(one, JointDecision)}
        rejected = {one["id"] for one in run.events if one["type"] == "rejected"}
        asked = {one.id: one for one in self.case.script if isinstance(one, Reconfigure)}
        assert asked.keys() - rejected == ends.keys(), "each reconfiguration ends"
        for id, end in ends.items():
            assert (id in decided) == isinstance(end, PlanInForce), "it is decided, or rolled back"
        alone = {command_of(one) for one in run.sim.decisions} & asked.keys()
        assert not alone, "no part of it is decided alone"
        for id, decision in decided.items():
            self.check_parts(asked[id], decision)

    def check_parts(self, command: Reconfigure, decision: JointDecision) -> None:
        """Check that a decision has all parts of a reconfiguration, for one time."""
        assert {part.time for part in decision.parts} <= {decision.time}
        assert command.time in (None, decision.time), "it holds from the time that it names"
        changed = {
            one.operator
            for part in decision.parts
            if isinstance(part, LogicDecision)
            for one in part.changes
        }
        assert changed == command.logic.keys()
        moved = sum(len(part.bins) for part in decision.parts if isinstance(part, Moves))
        assert moved == sum(map(len, command.bins.values()))
        read = sum(isinstance(part, ReassignPartition) for part in decision.parts)
        assert read == len(command.partitions)

    def check_timed(self, run: TestFlow) -> None:
        """Check that each operator has timed each of its records once."""
        for worker in run.workers:
            for name, work in worker.work().items():
                assert sum(work.durations.counts) == work.received, (
                    f"{name!r} has not timed each once"
                )

    def check_arrival(self, run: TestFlow) -> None:
        """Check the order of each partition per key, and that every record counts once (I3)."""
        check_partitions(self.sink.results)
        numbers: dict[bytes | None, list[object]] = defaultdict(list)
        for result in self.sink.results:
            numbers[result.key].append(result.value)
        counted = all(seen == list(range(1, len(seen) + 1)) for seen in numbers.values())
        assert counted, "each record is counted once, and a key's results stand in order (I3, I9)"
        counts = {key: codec.encode(len(seen)) for key, seen in numbers.items()}
        assert run.state() == {"a": counts}
        places = Counter((r.order[2], r.order[3]) for r in self.records(self.raw))
        assert Counter((r.partition, r.offset) for r in self.sink.results) == places


class Committed(CaseRun):
    """A run that delivers exactly once."""

    delivery: Guarantee = "exactly_once"


def run_of(case: Case) -> CaseRun:
    """Return the run of a case; some seeds deliver exactly once."""
    return Committed(case) if case.seed % 4 == 3 and case.kind != "arrival" else CaseRun(case)


def swept_until(worker: Worker) -> Iterator[int]:
    """Yield the greatest due time of states that each sweep of a worker may have removed."""
    for operator in worker.parts.operators.operators:
        if isinstance(operator, Snapshots):
            yield from (sweep._until for _, sweep in operator._sweeps)


def compute_blockers(coordinator: Coordinator) -> None:
    """Compute the frontier blockers after every turn of the coordinator."""
    step = coordinator.step

    def stepped() -> bool:
        worked = step()
        coordinator.frontier_blockers()
        return worked

    coordinator.step = stepped  # type: ignore[method-assign]


def keyed_operators(worker: Worker) -> list[KeyedOperator]:
    """Return the keyed operators of a worker."""
    found = (outgoing.keyed for outgoing in worker.parts.operators.outgoing)
    return [one for one in found if isinstance(one, KeyedOperator)]


def check_queues(worker: Worker) -> None:
    """Check that the queue of each keyed operator is in the total order."""
    for keyed in keyed_operators(worker):
        queue = keyed._queue
        if len(queue) > 1 and keyed._order == "event":
            places = [
                loop_times.total_order_key(loop_times.nested_time(least, rows.iterations))
                for least, rows in queue
            ]
            assert places == sorted(places), "what is queued is in the total order (I3)"


def check_partitions(results: Sequence[Result]) -> None:
    """Check that written results of one partition, per key, stand in order and come once."""
    newest: dict[tuple[bytes | None, int], tuple[int, int]] = {}
    for result in results:
        lane, place = (result.key, result.partition), (result.offset, result.index)
        assert newest.get(lane, (-1, 0)) < place, "a partition's own order is kept (I3, I9)"
        newest[lane] = place


def check_written(
    results: Sequence[Result], wanted: Sequence[Record], by_time: bool = False
) -> None:
    """Check that the written results of each lane stand in the reference's order, or `by_time` in
    the order of time.

    Equal results of several lanes cannot be told apart, so their order is not checked.
    """
    places: dict[str, deque[tuple[int, object]]] = defaultdict(deque)
    for place, one in enumerate(wanted):
        places[repr((one.order, one.value))].append((place, one.lane))
    mixed = {name for name, many in places.items() if len({lane for _, lane in many}) > 1}
    newest: dict[object, int] = {}
    for result in results:
        name = repr((result.place, result.value))
        place, lane = places[name].popleft()
        if lane == OWN:
            lane = result.partition if result.key is None else result.key
        if lane is not None and name not in mixed:
            now, before = result.time if by_time else place, newest.get(lane, -1)
            in_order = before < now or (by_time and before == now)
            assert in_order, "results of a key in the total order (I9)"
            newest[lane] = now


def with_stages(case: Case) -> str:
    """Return a case with loops, and the stages of its flow, as text."""
    return f"The shortest schedule that fails:\n{case}\n{stages_of(case.seed, case.kind)}"


def command_of(decision: Decision) -> str:
    """The id of the command that asked for a move of bins or a change of logic."""
    match decision:
        case Moves(command=id):
            return id.partition("/")[0]
        case LogicDecision(changes=changes):
            return changes[0].command
    return ""
