"""I5 where random lives seldom come: a run that had ended goes on; and flows that cannot commit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest

from meander import Flow, Stream
from meander.app.loading.preflight import _expect_committable
from meander.dataflow.api.plan import Plan
from meander.dataflow.control.command import MoveBins
from meander.dataflow.control.timestamp_overrides import TimestampOverride
from meander.dataflow.exactly_once import transaction_loop
from meander.dataflow.exactly_once.checksum import Checksum, CommittedChecksum
from meander.dataflow.exactly_once.commit_markers import CommitMarker
from meander.dataflow.interfaces import Partition
from meander.dataflow.simulation.in_memory import ListSink, ListSource
from meander.dataflow.simulation.simulator import NOW_MS, Join, Leave, TakeCheckpoint
from meander.schemas.errors import SetupError
from meander.state.keys.ids import Bin, ExecutionId, WorkerId
from meander.testing import TestFlow


def counting(source: ListSource, sink: ListSink) -> Flow:
    flow = Flow("counts", bins=2, delivery="exactly_once")
    words = flow.source(source).key_by(lambda word: word)
    words.fold("n", lambda: 0, lambda n, word: (n + 1, [word, n + 1])).sink(sink)
    return flow


@pytest.mark.parametrize("seed", range(4))
def test_what_comes_to_a_partition_after_a_run_has_ended_is_answered_by_the_next(seed: int) -> None:
    """Though it asks for times of before, of which all seems to be out."""
    sink = ListSink()
    source = ListSource([[(n, f"w{n % 5}") for n in range(100)], [(900, "x"), (1000, "x")]])
    with TestFlow(counting(source, sink), 2, seed, commands=[TakeCheckpoint()]) as run:
        run.run()
        world = run.world
    for _ in range(2):
        source.partitions[0] = [*source.partitions[0], *((n, "late") for n in range(200, 220))]
        with TestFlow(counting(source, sink), 2, seed, world=world) as run:
            run.run()
    late = [["late", n] for n in range(1, 41)]
    assert [value for value in sink.values if value in late] == late
    assert len(sink.values) == 142


@pytest.mark.parametrize("seed", range(4))
def test_what_a_worker_let_go_of_that_has_left_is_not_awaited_again(seed: int) -> None:
    """Nobody else has anything to let go of, so only its going says that all was out by then."""
    sink = ListSink()
    flow = counting(ListSource([[(n, "x") for n in range(300)], [(9000, "x")]]), sink)
    with TestFlow(flow, 2, seed, commands=[TakeCheckpoint()]) as run:
        owner = run.owner("x")
        while len(sink.values) < 200:
            run.act()
        run.inject(Leave("l", owner))
        while not any(event["type"] == "left" for event in run.events):
            run.act()
        before = len(run.world.checkpoints)
        run.inject(TakeCheckpoint())
        while len(run.world.checkpoints) == before:
            run.act()
        world = run.world
    with TestFlow(flow, 2, seed, world=world) as run:
        run.run()
        assert not run.sim.coordinator.replays.awaited
    assert len(sink.values) == 301


def test_only_topics_take_part_in_transactions() -> None:
    with pytest.raises(SetupError, match="sink 'sink': only a KafkaSink supports transactions"):
        _expect_committable(Plan(counting(ListSource([[]]), ListSink())))


def test_a_delivery_that_there_is_not_is_refused() -> None:
    with pytest.raises(SetupError, match="its delivery is 'at_most_once'; choose 'at_least_once'"):
        Flow("counts", delivery="at_most_once")  # type: ignore[arg-type]


RULINGS = TimestampOverride(0, Partition(3), 4, 9), TimestampOverride(1, Partition(0), 5, 9, last=8)
GOLDEN_MARKER = CommitMarker(
    ExecutionId(7), WorkerId(1), {"sink": 50, "new": 3}, RULINGS,
    {"sink": CommittedChecksum(40, Checksum(2, 1 << 63))}, sent=9,
)  # fmt: skip
GOLDEN = "010e02040873696e6b640250048000000000000000066e657706000004000608120002000a1202100012"


def test_version_1_of_a_marker_has_the_bytes_that_were_agreed_on() -> None:
    assert GOLDEN_MARKER.to_bytes().hex() == GOLDEN
    assert CommitMarker.from_bytes(bytes.fromhex(GOLDEN)) == GOLDEN_MARKER


@pytest.mark.parametrize("seed", range(4))
def test_what_leaves_a_loop_early_is_delivered_beside_what_went_round_with_a_key(seed: int) -> None:
    """I5: in the order of time, and a replay knows it again wherever it was made."""
    sink = ListSink()

    def body(stream: Stream[Any]) -> tuple[Stream[Any], Stream[Any]]:
        again = stream.filter(lambda v: v[1] < 3).map(lambda v: (v[0], v[1] + 1))
        return again.key_by(lambda v: v[0] % 3), stream.map(lambda v: v)

    flow = Flow("mixed", bins=2, delivery="exactly_once")
    parts = [[(1 + n, (first + n, 0)) for n in range(60)] for first in (0, 100)]
    flow.source(ListSource(parts)).iterate("loop", body).sink(sink)
    with TestFlow(flow, 2, seed, commands=[TakeCheckpoint()]) as run:
        while len(sink.values) < 60:
            run.act()
        world = run.world
    with TestFlow(flow, 3, seed, world=world) as run:
        run.run()
        assert run.counters["suppressed"]
        assert any(event["type"] == "replay_checked" for event in run.events)
    given = [value for part in parts for _, value in part]
    assert Counter(sink.values) == Counter((n, r) for n, _ in given for r in range(4))
    assert {result.key for result in sink.results} == {None}


def future(sink: ListSink, late: int) -> Flow:
    """Of a key's records only the last has a result; two ask for times that count for nothing."""
    far = NOW_MS + 60_000
    records = [(n, "x") for n in range(late)]
    records[4:4] = [(far, "x")]
    records[9:9] = [(far, "x")]
    flow = Flow("late", bins=1, delivery="exactly_once", max_inflight=300)
    counts = flow.source(ListSource([records])).key_by(lambda word: word)
    last = counts.fold("n", lambda: 0, lambda n, word: (n + 1, n + 1))
    last.filter(lambda n: n == late + 2).sink(sink)
    return flow


RULED = {4, 9}
"""The offsets of what the source rules about there."""


def offsets(rulings: Iterable[TimestampOverride]) -> set[int]:
    return {one.offset for one in rulings}


@pytest.mark.parametrize("seed", range(4))
def test_who_joins_commits_what_was_ruled_before(seed: int) -> None:
    """I5: it may be the first whose results need that, and has not heard it when it was ruled."""
    sink = ListSink()
    with TestFlow(future(sink, 300), 1, seed, commands=[TakeCheckpoint()]) as run:
        while not offsets(run.workers[0].parts.transactions.uncommitted_overrides) >= RULED:
            run.act()
        run.inject(Join())
        while len(run.workers) < 2 or not run.workers[1].parts.progress.ready:
            run.act()
        run.inject(MoveBins("all", (Bin(0), Bin(1)), WorkerId(1)))
        assert not sink.values
        run.run()
        markers = [one for one in run.world.ledger.markers if one.worker == 1]
    assert {one.worker for one in sink.results} == {1}
    assert offsets(ruling for marker in markers for ruling in marker.overrides) >= RULED


def test_many_rulings_are_committed_though_no_result_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """I6: a worker whose results are few does not keep all that it hears."""
    monkeypatch.setattr(transaction_loop, "OVERRIDES", 2)
    with TestFlow(future(ListSink(), 40), 2, 0, commands=[TakeCheckpoint()]) as run:
        run.run()
        markers = run.world.ledger.markers
    for worker in range(2):
        first = next(one for one in markers if one.worker == worker)
        assert offsets(first.overrides) >= RULED
        assert not first.checksums["sink"].checksum.count
