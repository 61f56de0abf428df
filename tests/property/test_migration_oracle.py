"""I2, I3, I4 and I7: results and final state equal a single-threaded reference, record for record,
whatever migrations are asked for and however workers, links and answers are delayed."""

from __future__ import annotations

import os
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from dataflow import Flow, KeyedStream, columns
from dataflow.testing import ListSink, ListSource, Result, TestFlow
from state import codec
from state.bins import BinSpace
from state.ids import Bin
from state.store import Database
from state.time import from_millis
from tests.property import reference
from tests.property.cases import Case, Entry, random_case, shortest
from tests.property.reference import Record

FLOOR = 300
SECONDS = float(os.environ.get("MEANDER_PROPERTY_SECONDS", "60"))


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    base: Path = tmp_path_factory.mktemp("stores")
    database = Database(base, 32 << 20)
    yield database
    database.close()


class Run:
    """One case on simulated workers, and what it has to equal."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.raw, self.sink = ListSink(), ListSink()
        self.expected: list[Record] = []
        self.states: dict[str, dict[bytes, object]] = {}
        self.flow = Flow(
            "f", bins=case.bits, max_inflight=case.max_inflight, control_lead=case.control_lead
        )

    def check(self, database: Database, namespace: int) -> None:
        source = self.flow.source(ListSource(self.case.partitions, self.case.options))
        source.sink(self.raw)
        keyed = source.key_by(lambda r: r["k"])
        getattr(self, f"define_{self.case.kind}")(keyed)
        run = TestFlow(
            self.flow, self.case.workers, self.case.seed, self.case.commands, database, namespace
        )
        with run:
            run.run()
            self.check_times(run)
            getattr(self, f"expect_{self.case.kind}")(self.records())
            self.check_results()
            self.check_state(run)
            self.check_owners(run)
            self.check_commands(run)

    # -- what the engine decided about times is checked by itself, then taken as given

    def records(self) -> list[Record]:
        return [
            Record((r.time, r.origin, r.partition, r.offset, r.index), r.value)
            for r in self.raw.results
        ]

    def check_times(self, run: TestFlow) -> None:
        bumps = self.bumps(self.raw, self.case.partitions)
        if self.case.kind == "connect":
            bumps += self.bumps(self.other_raw, self.case.partitions[::-1])
        counted = sum((worker.counters for worker in run.workers), Counter[str]())
        assert counted["bumps"] == bumps

    def bumps(self, raw: ListSink, partitions: Sequence[Sequence[Entry]]) -> int:
        by_partition: dict[int, list[Result]] = defaultdict(list)
        for result in raw.results:
            by_partition[result.partition].append(result)
        bumps = 0
        for p, entries in enumerate(partitions):
            got = sorted(by_partition[p], key=lambda r: r.offset)
            assert [r.offset for r in got] == list(range(len(entries))), "each record once"
            assert [r.value for r in got] == [value for _, value in entries]
            maximum = last = 0
            for result, (ms, _) in zip(got, entries, strict=True):
                maximum = max(maximum, from_millis(ms))
                assert result.time >= max(maximum, last), "times never decrease"
                bumps += result.time > maximum
                last = result.time
        return bumps

    # -- results, state, owners

    def check_results(self) -> None:
        got = [
            ((r.time, r.origin, r.partition, r.offset, r.index), r.value) for r in self.sink.results
        ]
        expected = [(r.order, r.value) for r in self.expected]
        assert sorted(map(repr, got)) == sorted(map(repr, expected))

    def check_state(self, run: TestFlow) -> None:
        expected = {
            name: {key: codec.encode(state) for key, state in states.items()}
            for name, states in self.states.items()
        }
        assert run.state() == expected

    def check_owners(self, run: TestFlow) -> None:
        space = BinSpace(self.case.bits)
        moved: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for event in run.events:
            if event["event"] == "bin_moved":
                moved[int(str(event["bin"]))].append(
                    (int(str(event["time"])), int(str(event["worker"])))
                )
        for result in self.sink.results:
            assert result.key is not None
            bin = space.bin_of(result.key)
            owner: int = space.first_owner(Bin(bin), self.case.workers)
            for moved_at, target in sorted(moved[bin]):
                if moved_at <= result.time:
                    owner = target
            assert result.worker == owner, f"bin {bin} at {result.time} answered elsewhere (I2)"

    def check_commands(self, run: TestFlow) -> None:
        said = defaultdict(list)
        for event in run.events:
            said[event["id"]].append(event["event"])
        for command in self.case.commands:
            first, *_, last = (*said[command.id], said[command.id][-1])
            assert (first, last) in {("accepted", "completed"), ("rejected", "rejected")}

    # -- the flows, each with what it has to equal

    def define_chain(self, keyed: KeyedStream[Any]) -> None:
        keyed.fold("a", _zero, _total).map(_double).fold("b", _empty, _trail).sink(self.sink)

    def expect_chain(self, records: list[Record]) -> None:
        first, self.states["a"] = reference.fold(records, _k, _zero, _total)
        mapped = [Record(r.order, _double(r.value)) for r in first]
        self.expected, self.states["b"] = reference.fold(mapped, _k, _empty, _trail)

    def define_rekey(self, keyed: KeyedStream[Any]) -> None:
        split = keyed.fold("a", _zero, _total).flat_map(_split)
        split.key_by(_n).fold("b", _empty, _trail).sink(self.sink)

    def expect_rekey(self, records: list[Record]) -> None:
        first, self.states["a"] = reference.fold(records, _k, _zero, _total)
        split = reference.flat_map(first, _split)
        self.expected, self.states["b"] = reference.fold(split, _n, _empty, _trail)

    def define_timers(self, keyed: KeyedStream[Any]) -> None:
        keyed.process("a", _empty, _remember, _ring).fold("b", _empty, _trail).sink(self.sink)

    def expect_timers(self, records: list[Record]) -> None:
        first, self.states["a"] = reference.process(
            records, _k, _empty, [_remember], _ring, origin=1
        )
        self.expected, self.states["b"] = reference.fold(first, _k, _empty, _trail)

    def define_connect(self, keyed: KeyedStream[Any]) -> None:
        other = self.flow.source(
            ListSource(self.case.partitions[::-1], self.case.options),
            "other",
        )
        self.other_raw = ListSink()
        other.sink(self.other_raw)
        joined = keyed.connect(other.key_by(lambda r: r["k"]), "a", _empty, _remember, _left, _ring)
        joined.sink(self.sink)

    def expect_connect(self, records: list[Record]) -> None:
        others = [
            Record((r.time, r.origin, r.partition, r.offset, r.index), r.value, side=1)
            for r in self.other_raw.results
        ]
        self.expected, self.states["a"] = reference.process(
            records + others, _k, _empty, [_remember, _left], _ring, origin=2
        )

    def define_columns(self, keyed: KeyedStream[Any]) -> None:
        keyed.fold("a", columns.mean("v")).sink(self.sink)

    def expect_columns(self, records: list[Record]) -> None:
        self.expected, self.states["a"] = reference.fold(records, _k, lambda: (0, 0.0), _mean)

    def define_arrival(self, keyed: KeyedStream[Any]) -> None:
        self.applied: list[tuple[int, int, int, int]] = []
        keyed.fold("a", lambda: 0, _number, order="arrival").sink(self.sink)

    def expect_arrival(self, records: list[Record]) -> None:
        assert Counter((r.partition, r.offset) for r in self.sink.results) == Counter(
            (r.order[2], r.order[3]) for r in records
        )
        newest: dict[tuple[bytes | None, int], int] = {}
        for result in sorted(self.sink.results, key=lambda r: (r.key or b"", r.value)):
            place = (result.key, result.partition)
            assert newest.get(place, -1) < result.offset, "a partition's own order is kept (I3)"
            newest[place] = result.offset
        counts = Counter(codec.encode(_k(r.value)) for r in records)
        numbers: dict[bytes | None, set[object]] = defaultdict(set)
        for result in self.sink.results:
            numbers[result.key].add(result.value)
        assert all(numbers[key] == set(range(1, n + 1)) for key, n in counts.items())
        self.states["a"] = dict(counts)
        self.expected = [
            Record((r.time, r.origin, r.partition, r.offset, r.index), r.value)
            for r in self.sink.results
        ]


def _k(value: Any) -> object:
    return value["k"]


def _n(value: Any) -> object:
    return value["n"] % 3


def _zero() -> object:
    return (0, 0)


def _empty() -> object:
    return []


def _total(state: Any, value: Any) -> tuple[object, object]:
    n, total = state[0] + 1, state[1] * 31 + value["v"]
    total %= 1_000_003
    return (n, total), {"k": value["k"], "n": n, "v": total}


def _double(value: Any) -> object:
    return {**value, "v": 2 * value["v"]}


def _trail(state: Any, value: Any) -> tuple[object, object]:
    state.append(value["v"])
    del state[:-3]
    return state, {**value, "trail": list(state)}


def _split(value: Any) -> list[object]:
    return [{**value, "v": value["v"] + i} for i in range(value["n"] % 3)]


def _remember(context: Any, state: Any, value: Any) -> object:
    state.append(value["v"])
    context.emit({"k": value["k"], "v": len(state)})
    if value["v"] % 2:
        context.timer(context.time_ms + 5 + 7 * value["v"] % 40)
    return state


def _left(context: Any, state: Any, value: Any) -> object:
    if state:
        context.emit({"k": value["k"], "v": state.pop(0) - value["v"]})
    return state


def _ring(context: Any, state: Any) -> object:
    context.emit({"k": context.key, "v": -len(state)})
    if len(state) % 2:
        context.timer(context.time_ms + 3)
    return state[1:]


def _mean(state: Any, value: Any) -> tuple[object, object]:
    n, total = state[0] + 1, state[1] + float(value["v"])
    return (n, total), total / n


def _number(state: Any, value: Any) -> tuple[object, object]:
    return state + 1, state + 1


def test_results_and_state_equal_the_reference(
    database: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    namespace = count()
    kinds: Counter[str] = Counter()
    moved = 0

    def fails(case: Case) -> bool:
        try:
            Run(case).check(database, next(namespace))
        except Exception:
            return True
        return False

    begun = time.monotonic()
    first = int(os.environ.get("MEANDER_SEED", "0"))
    for seed in count(first):
        if seed - first >= FLOOR and time.monotonic() - begun > SECONDS:
            break
        case = random_case(seed)
        run = Run(case)
        try:
            run.check(database, next(namespace))
        except Exception:
            found = traceback.format_exc()
            pytest.fail(f"{found}\nThe shortest schedule that fails:\n{shortest(case, fails)}")
        kinds[case.kind] += 1
        moved += len(case.commands)
    with capsys.disabled():
        print(f"\n{sum(kinds.values())} random runs, {moved} commands: {dict(kinds)}")
