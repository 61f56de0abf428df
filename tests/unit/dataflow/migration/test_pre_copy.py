"""I2, I4 and I7 of moves that are prepared: what lies on the state topic is fetched ahead, what is
prepared and does not move is dropped, and what cannot be read is written anew."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from meander import Flow
from meander.dataflow.backpressure.throttle import MoveThrottle
from meander.dataflow.control.command import MoveBins
from meander.dataflow.simulation.in_memory import ListSink, ListSource
from meander.dataflow.simulation.simulator import AbortMoves, Join, SimTopic
from meander.schemas.control import CommandError
from meander.state.keys.ids import Bin, WorkerId
from meander.state.layers.chunk import LayerCorrupt
from meander.state.layers.topic import Ticket
from meander.state.times.time import from_millis
from meander.testing import TestFlow
from tests.support.sim.manual_flow import ManualFlow, ManualSource, keyed, until
from tests.support.sim.start import Start

BINS = 4
KEYS = 40


class Counting:
    """A count per key on two workers, with all keys counted once."""

    def __init__(self, start: Start, **options: Any) -> None:
        self.source, self.sink = ManualSource(), ListSink()
        flow = Flow("f", bins=2, **options)
        counted = flow.source(self.source).key_by(lambda key: key)
        counted.fold("n", lambda: 0, lambda n, key: (n + 1, (key, n + 1))).sink(self.sink)
        self.run: ManualFlow = start(flow)
        self.count(1000)

    @property
    def coordinator(self) -> Any:
        return self.run.sim.coordinator

    def count(self, ms: int) -> None:
        self.source.give(0, *((ms, key) for key in range(KEYS)))
        self.run.wait(0.01)

    def submit(self, id: str, bins: Sequence[int], worker: int, **how: Any) -> None:
        self.coordinator.submit(MoveBins(id, tuple(map(Bin, bins)), WorkerId(worker), **how))

    def events(self, kind: str) -> list[dict[str, object]]:
        return [event for event in self.run.events if event["type"] == kind]

    def owners(self) -> list[int]:
        return list(map(int, self.coordinator.owners()))

    def staged(self, worker: int) -> set[Bin]:
        return set(keyed(self.run.workers[worker], "n").incoming.prefetched)

    def until(self, holds: Callable[[], bool]) -> None:
        until(holds, lambda: self.run.wait(0.001))

    def finish(self, counts: int) -> None:
        """To the end: each key has been counted so often, and each result came once."""
        self.run.finish(self.source)
        assert self.run.states("n") == dict.fromkeys(range(KEYS), counts)
        wanted = [(key, n + 1) for key in range(KEYS) for n in range(counts)]
        assert sorted(map(repr, self.sink.values)) == sorted(map(repr, wanted))


@pytest.fixture
def flow(start: Start) -> Counting:
    return Counting(start)


@pytest.fixture
def corrupted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many of the next pre_copies bring what was not written."""
    left, fetched = [0], SimTopic.fetched

    def spoilt(topic: SimTopic, ticket: Ticket) -> list[bytes] | None:
        payloads = fetched(topic, ticket)
        if payloads and left[0]:
            left[0] -= 1
            return [payload[:-1] + bytes([payload[-1] ^ 1]) for payload in payloads]
        return payloads

    monkeypatch.setattr(SimTopic, "fetched", spoilt)
    return left


@contextmanager
def unanswered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Meanwhile nothing that is asked of the state topic comes."""
    with monkeypatch.context() as silent:
        silent.setattr(SimTopic, "fetched", lambda topic, ticket: None)
        yield


# -- ahead of its time


def test_a_time_is_given_once_all_has_been_fetched(
    flow: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    with unanswered(monkeypatch):
        flow.submit("m", [0, 1], 1, strategy="all-at-once")
        flow.run.wait(0.05)
        assert flow.events("accepted")[0]["at"] is None
        assert flow.coordinator.migrations.rounds() == [] and flow.owners() == [0, 0, 1, 1]
        flow.count(2000)
    flow.until(lambda: bool(flow.events("completed")))
    assert flow.owners() == [1, 1, 1, 1]
    flow.finish(2)


def test_a_time_that_is_named_does_not_wait(
    flow: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    with unanswered(monkeypatch):
        flow.submit("m", [0, 1], 1, strategy="all-at-once", time=from_millis(2000))
        flow.run.wait(0.05)
        assert flow.staged(1) == {0, 1}
        flow.count(3000)
        assert flow.owners() == [1, 1, 1, 1], "whose they are is decided by the time alone"
        assert not flow.events("bin_moved")
    flow.until(lambda: bool(flow.events("completed")))
    assert {event["at"] for event in flow.events("bin_moved")} == {from_millis(2000)}
    flow.finish(2)


def test_what_has_been_fetched_ahead_is_not_fetched_again(flow: Counting) -> None:
    flow.submit("m", [0, 1], 1, strategy="all-at-once", time=from_millis(2000))
    flow.run.wait(0.05)
    ahead = records_on_the_state_topic(flow)
    assert {
        f.ready for one in flow.coordinator.migrations.running for f in one.pre_copies.values()
    } == {True}
    flow.count(3000)
    flow.until(lambda: bool(flow.events("completed")))
    assert records_on_the_state_topic(flow) == ahead, "nothing had changed"
    flow.finish(2)


def records_on_the_state_topic(flow: Counting) -> int:
    return len(topic_of(flow)._records)


def topic_of(flow: Counting) -> Any:
    return flow.run.workers[0].parts.operators.environment.topic


def test_no_more_bins_are_made_ready_at_once_than_memory_allows(start: Start) -> None:
    """I6."""
    flow = Counting(start, move_memory=1)
    flow.submit("m", [0, 1], 1, strategy="all-at-once")
    most = 0
    for _ in range(2000):
        flow.run.turn()
        flow.run.sim.clock.advance(0.0005)
        pre_copies = [
            f for one in flow.coordinator.migrations.running for f in one.pre_copies.values()
        ]
        most = max(most, sum(not fetch.ready for fetch in pre_copies))
        if flow.events("completed"):
            break
    assert most == 1 and flow.events("completed")
    flow.finish(1)


def test_of_what_lies_on_the_topic_but_for_little_nothing_is_written(start: Start) -> None:
    """What has changed since the last snapshot comes with the bin, and is in the next one."""
    flow = Counting(start, snapshot_interval=0.1)
    flow.run.wait(0.2)
    flow.source.give(0, *((1100, key) for key in range(KEYS)))
    flow.run.wait(0.01)
    written = records_on_the_state_topic(flow)
    flow.submit("m", [0, 1], 1)
    flow.until(lambda: bool(flow.events("completed")))
    assert records_on_the_state_topic(flow) == written
    flow.run.wait(0.2)
    assert records_on_the_state_topic(flow) > written
    flow.finish(2)


def test_of_a_bin_that_has_left_no_more_is_written(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I2: its copy is kept for a while, and is nobody's state."""
    flow = Counting(start, snapshot_interval=0.005)
    with unanswered(monkeypatch):
        flow.submit("m", [0], 1, precopy=False)
        outlet = flow.run.workers[0].parts.operators.outgoing[0]
        flow.until(lambda: bool(outlet.retained))
        outlet.keyed.store.mark_changed(0)
        written = records_on_the_state_topic(flow)
        flow.run.wait(0.05)
        assert records_on_the_state_topic(flow) == written
    flow.until(lambda: bool(flow.events("completed")))
    flow.finish(1)


def test_the_owner_of_a_bin_gets_no_prefetch_of_it(start: Start) -> None:
    """I2: of what moves at the least time that is not forsworn it is not known yet that it does."""
    flow = Counting(start, control_lead=0.25)
    time = flow.coordinator.closed_before
    flow.submit("m", [0], 1, time=time)
    flow.until(lambda: all(round.sent for round in flow.coordinator.migrations.rounds()))
    assert flow.coordinator.closed_before == time and not flow.events("bin_moved")
    flow.submit("n", [0], 0)
    flow.run.wait(0.01)
    assert flow.staged(0) == set()
    flow.count(3000)
    flow.until(lambda: len(flow.events("completed")) == 2)
    assert flow.owners() == [0, 0, 1, 1]
    flow.finish(2)


def test_what_moves_at_a_far_off_time_is_made_ready_when_that_is_near(start: Start) -> None:
    """Layers that somebody may read cannot be merged."""
    flow = Counting(start)
    for ms in (2000, 3000, 4000):
        flow.count(ms)
        flow.run.wait(0.99)
    counted = 4
    flow.submit("m", [0, 1], 1, strategy="all-at-once", time=from_millis(4000 + 200_000))
    flow.run.wait(0.05)
    assert flow.staged(1) == set()
    for ms in range(5000 + 90_000, 5000 + 92_000, 1000):
        flow.count(ms)
        flow.run.wait(0.99)
        counted += 1
    flow.until(lambda: flow.staged(1) == {0, 1})
    flow.count(300_000)
    flow.until(lambda: bool(flow.events("completed")))
    flow.finish(counted + 1)


def test_a_bin_that_has_come_is_fetched_to_its_end_whatever_the_pace(
    flow: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I7: records wait for it."""
    with unanswered(monkeypatch):
        flow.submit("m", [0], 1, time=from_millis(2000))
        flow.until(lambda: keyed(flow.run.workers[1], "n").incoming._prefetched.is_running(Bin(0)))
        monkeypatch.setattr(MoveThrottle, "open", False)
        flow.count(3000)
    flow.until(lambda: bool(flow.events("completed")))
    flow.finish(2)


# -- ended before its time


def test_an_abort_leaves_what_has_not_moved_where_it_is(
    flow: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I2; and what was fetched ahead is dropped."""
    with unanswered(monkeypatch):
        flow.submit("m", [0, 1], 1)
        flow.run.wait(0.02)
        assert flow.staged(1) == {0, 1}
        flow.run.sim.submit(AbortMoves("a", "m"))
        flow.run.wait(0.02)
    (ended,) = flow.events("aborted")
    assert (ended["by"], ended["bins"], ended["unmoved"]) == ("a", 0, [0, 1])
    assert ended["reason"] == "command 'a' has aborted it"
    assert flow.staged(1) == set() and flow.owners() == [0, 0, 1, 1]
    flow.finish(1)


def test_a_round_whose_time_has_not_come_is_revoked(flow: Counting) -> None:
    flow.submit("m", [0, 1], 1, strategy="all-at-once", time=from_millis(5000))
    flow.run.wait(0.05)
    expect_revoked(flow)


def test_a_round_of_the_least_time_that_is_not_forsworn_is_revoked(start: Start) -> None:
    """Though no record comes that would take the flow past it."""
    flow = Counting(start, control_lead=0.25)
    time = flow.coordinator.closed_before
    flow.submit("m", [0, 1], 1, strategy="all-at-once", time=time)
    flow.until(lambda: all(round.sent for round in flow.coordinator.migrations.rounds()))
    assert flow.coordinator.closed_before == time
    expect_revoked(flow)


def expect_revoked(flow: Counting) -> None:
    """Nothing moves once the command has been aborted, at its time either."""
    flow.run.sim.submit(AbortMoves("a", "m"))
    flow.run.wait(0.02)
    assert flow.events("aborted")[0]["unmoved"] == [0, 1]
    flow.count(6000)
    assert flow.owners() == [0, 0, 1, 1]
    flow.finish(2)


def test_a_round_that_is_under_way_comes_to_its_end(
    flow: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    with unanswered(monkeypatch):
        flow.submit("m", [0, 1], 1, strategy="fluid", precopy=False)
        flow.until(lambda: any(r.awaited for r in flow.coordinator.migrations.rounds()))
        flow.run.sim.submit(AbortMoves("a", "m"))
        flow.run.wait(0.02)
        assert not flow.events("aborted")
    flow.until(lambda: bool(flow.events("aborted")))
    assert (flow.events("aborted")[0]["bins"], flow.events("aborted")[0]["unmoved"]) == (1, [1])
    assert flow.owners() == [1, 0, 1, 1]
    flow.finish(1)


def test_only_what_is_under_way_can_be_aborted(flow: Counting) -> None:
    with pytest.raises(CommandError, match="command 'm' is not running: there is none to abort"):
        flow.coordinator.abort("m", by="a")
    flow.submit("m", [0], 1, time=from_millis(9000))
    with pytest.raises(CommandError, match="name one of 'm'"):
        flow.coordinator.abort("n", by="a")
    flow.coordinator.abort("m", by="a")
    with pytest.raises(CommandError, match="id 'a' was used before"):
        flow.coordinator.abort("m", by="a")


# -- several commands


def test_a_command_for_bins_that_move_is_refused_where_it_asks_for_that(flow: Counting) -> None:
    flow.submit("m", [0, 1], 1)
    with pytest.raises(
        CommandError, match="bin 1 is moved by command 'm': wait for its end, abort it"
    ):
        flow.submit("n", [1, 2], 0, overlap="reject")
    flow.submit("o", [2, 3], 0, overlap="reject")
    flow.until(lambda: len(flow.events("completed")) == 2)
    assert flow.owners() == [1, 1, 0, 0], "disjoint ones run side by side"
    flow.finish(1)


def test_a_command_that_waits_begins_when_those_before_it_have_ended(flow: Counting) -> None:
    flow.submit("m", [0, 1], 1)
    flow.submit("n", [1, 0], 0)
    flow.submit("o", [1], 1)
    flow.until(lambda: len(flow.events("completed")) == 3)
    assert [event["id"] for event in flow.events("completed")] == ["m", "n", "o"]
    assert [event["after"] for event in flow.events("queued")] == [["m"], ["m", "n"]]
    assert flow.owners() == [0, 1, 1, 1]
    flow.finish(1)


def test_what_moves_later_does_not_keep_what_moves_now_from_being_made_ready(
    flow: Counting,
) -> None:
    """I7."""
    flow.submit("later", [0, 1], 1, strategy="all-at-once", time=from_millis(9000))
    flow.run.wait(0.05)
    flow.submit("now", [0, 1], 1, strategy="fluid", time=from_millis(2000))
    flow.count(3000)
    flow.until(lambda: bool(flow.events("completed")))
    assert flow.events("completed")[0]["id"] == "now"
    flow.count(9500)
    flow.until(lambda: len(flow.events("completed")) == 2)
    flow.finish(3)


def test_no_worker_takes_part_in_two_moves_of_a_round(start: Start) -> None:
    flow = Counting(start)
    for _ in range(2):
        flow.run.sim.submit(Join())
        flow.run.wait(0.05)
    others = {Bin(n): WorkerId(2 + n % 2) for n in range(BINS)}
    flow.submit("m", range(BINS), 2, others=others)
    flow.until(lambda: bool(flow.events("completed")))
    by_time: dict[object, list[object]] = {}
    for event in flow.events("bin_moved"):
        by_time.setdefault(event["at"], []).extend((event["from"], event["to"]))
    assert 2 <= len(by_time) <= BINS
    assert all(len(set(workers)) == len(workers) for workers in by_time.values())
    flow.finish(1)


# -- layers that cannot be read


def test_a_bin_that_cannot_be_prefetched_stays_and_is_reported(
    flow: Counting, corrupted: list[int]
) -> None:
    """I4; and it is written anew, so that it can be moved later."""
    corrupted[0] = 1
    flow.submit("m", [0], 1)
    flow.until(lambda: bool(flow.events("completed")))
    (said,) = flow.events("bin_unreadable")
    assert (said["bin"], said["operator"], said["kept_in_place"]) == (0, "n", True)
    assert "its checksum is" in str(said["reason"])
    assert flow.events("completed")[0]["unmoved"] == [0]
    assert flow.owners() == [0, 0, 1, 1] and flow.staged(1) == set()
    flow.submit("again", [0], 1)
    flow.until(lambda: len(flow.events("completed")) == 2)
    assert flow.owners() == [1, 0, 1, 1]
    flow.finish(1)


@pytest.mark.parametrize("precopy", [True, False])
def test_what_cannot_be_read_at_its_time_is_written_once_more(
    start: Start, corrupted: list[int], precopy: bool
) -> None:
    """I4: the old owner keeps its copy until the install."""
    flow = Counting(start, move_memory=1)  # so that all goes by the topic
    flow.submit("m", [0], 1, time=from_millis(2000), precopy=precopy)
    flow.run.wait(0.05)
    flow.source.give(0, *((1500, key) for key in range(KEYS)))
    flow.run.wait(0.02)
    corrupted[0] = 1
    flow.count(3000)
    flow.until(lambda: bool(flow.events("completed")))
    (said,) = flow.events("bin_unreadable")
    assert (said["bin"], said["kept_in_place"]) == (0, False)
    assert flow.events("completed")[0]["unmoved"] == [] and flow.owners() == [1, 0, 1, 1]
    flow.finish(3)


def test_what_cannot_be_read_twice_ends_the_flow_with_its_name(
    flow: Counting, corrupted: list[int]
) -> None:
    corrupted[0] = 1000
    flow.submit("m", [0], 1, precopy=False)
    with pytest.raises(LayerCorrupt, match=r"layer/1/0/\d+ of operator 'n', bin 0"):
        flow.run.wait(0.2)


def test_who_leaves_gives_away_what_could_not_be_read_at_first(
    flow: Counting, corrupted: list[int]
) -> None:
    corrupted[0] = 1
    flow.until(lambda: flow.coordinator.ready)
    flow.coordinator.leave("l", [WorkerId(1)])
    flow.until(lambda: bool(flow.events("left")))
    assert [said["kept_in_place"] for said in flow.events("bin_unreadable")] == [False]
    assert flow.owners() == [0, 0, 0, 0]
    assert flow.run.states("n") == dict.fromkeys(range(KEYS), 1)


@pytest.mark.parametrize("seed", range(6))
def test_a_bin_that_comes_back_soon_has_its_records_wait_for_the_right_arrival(seed: int) -> None:
    """I2, I3: what waits for its second coming waits on, though it has been here meanwhile."""
    flow, sink, raw = Flow("f", bins=0, snapshot_interval=0.01), ListSink(), ListSink()
    rows = [[(ms, ms) for ms in range(first, 400, 3)] for first in (1, 2)]
    source = flow.source(ListSource(rows))
    source.sink(raw)
    keyed = source.key_by(lambda v: v % 5)
    keyed.fold("t", list, lambda seen, v: ([*seen, v], [*seen, v])).sink(sink)
    near = [(100, 1), (103, 0), (106, 1), (109, 0), (112, 1), (200, 0), (203, 1), (206, 0)]
    commands = [
        MoveBins(f"m{n}", (Bin(0),), WorkerId(to), from_millis(ms), precopy=False)
        for n, (ms, to) in enumerate(near)
    ]
    with TestFlow(flow, 2, seed, commands=commands) as run:
        run.run()
    seen, wanted = defaultdict[int, list[object]](list), list[object]()
    for one in sorted(raw.results, key=lambda r: r.place):
        assert isinstance(one.value, int)
        seen[one.value % 5].append(one.value)
        wanted.append([*seen[one.value % 5]])
    assert [r.value for r in sorted(sink.results, key=lambda r: r.place)] == wanted
