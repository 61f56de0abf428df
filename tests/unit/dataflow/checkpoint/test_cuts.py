"""I5 at cuts that random flows come to seldom: while states are being loaded, behind a worker that
has joined, and by a command that comes too often."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import pytest

from meander import Flow
from meander.dataflow.api.checkpointing import ON_COMMAND, POLICIES, Checkpointing, Policy
from meander.dataflow.api.plan import Plan
from meander.dataflow.api.stream import KeyedStream, Stream
from meander.dataflow.checkpoint import checkpoint_coordinator, checkpoint_writer, state_restore
from meander.dataflow.checkpoint.alignment import Alignment
from meander.dataflow.checkpoint.compatibility import expect_fits
from meander.dataflow.checkpoint.state_writer import StateWriter
from meander.dataflow.control.command import MoveBins
from meander.dataflow.operators.keyed.context import Context
from meander.dataflow.operators.keyed.operator import Order
from meander.dataflow.simulation.in_memory import DelayedWriter, ListSink, ListSource
from meander.dataflow.simulation.simulator import DurableWorld, Join, TakeCheckpoint
from meander.schemas.errors import MeanderError, SetupError
from meander.state.keys.ids import Bin, WorkerId
from meander.state.times.time import from_millis
from meander.testing import TestFlow

LINES = [[(n, f"w{n % 40}") for n in range(p, 1200, 3)] for p in range(3)]


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is in flight lies in many."""
    monkeypatch.setattr(checkpoint_writer, "ROWS", 4)


def counting(checkpoints: Checkpointing = ON_COMMAND) -> Flow:
    flow = Flow("counts", bins=1, snapshot_interval=0.01, checkpoints=checkpoints)
    words = flow.source(ListSource(LINES)).key_by(lambda word: word)
    words.fold("n", lambda: 0, lambda n, word: (n + 1, [word, n + 1])).sink(ListSink())
    return flow


def until_read(run: TestFlow, records: int) -> None:
    while run.counters["read"] < records:
        run.act()


def until_taken(run: TestFlow) -> None:
    """A checkpoint, as soon as can be."""
    before = len(run.world.checkpoints)
    run.inject(TakeCheckpoint())
    while len(run.world.checkpoints) == before:
        run.act()


def first_life(flow: Flow, seed: int, workers: int = 2) -> DurableWorld:
    with TestFlow(flow, workers, seed) as run:
        until_read(run, 400)
        until_taken(run)
        until_read(run, 600)
        until_taken(run)
        return run.world


def all_counted(run: TestFlow) -> bool:
    return run.states("n") == {f"w{n}": 30 for n in range(40)}


@pytest.mark.parametrize("seed", range(3))
def test_a_bin_of_which_a_part_is_loaded_is_in_the_cut_as_it_lies_on_the_topic(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = counting()
    world = first_life(flow, seed)
    monkeypatch.setattr(state_restore, "ENTRIES", 3)
    with TestFlow(flow, 2, seed, world=world) as run:
        while not any(worker.state()["n"] for worker in run.workers):
            run.act()
        assert any(worker.loading and worker.state()["n"] for worker in run.workers)
        until_taken(run)
    with TestFlow(flow, 3, seed, world=world) as run:
        run.run()
        assert all_counted(run)


@pytest.mark.parametrize("seed", range(2))
def test_who_has_joined_forgets_no_layer_that_a_checkpoint_names(seed: int) -> None:
    flow = counting()
    with TestFlow(flow, 1, seed) as run:
        until_read(run, 300)
        until_taken(run)
        run.inject(Join())
        run.control({"type": "migrate", "id": "m", "bins": "all", "worker": 1})
        while not any(event["type"] == "completed" for event in run.events):
            run.act()
        until_read(run, 1000)
        world = run.world
    with TestFlow(flow, 2, seed, world=world) as run:
        run.run()
        assert all_counted(run)


@pytest.mark.parametrize("seed", range(2))
def test_a_partition_that_a_leaving_worker_read_to_its_end_is_not_read_again(seed: int) -> None:
    flow = counting()
    with TestFlow(flow, 2, seed) as run:
        until_read(run, sum(map(len, LINES)))
        reader = run.workers[1].parts.operators.sources["source"]
        while reader.statuses():
            run.act()
        run.sim.coordinator.leave("l", [WorkerId(1)])
        while not any(event["type"] == "left" for event in run.events):
            run.act()
        until_taken(run)
        cut = run.world.checkpoints[-1].cut
        assert {(one.partition, one.offset) for one in cut.positions} == {
            (p, 400) for p in range(3)
        }
        world = run.world
    with TestFlow(flow, 2, seed, world=world) as run:
        run.run()
        assert run.counters["read"] == 0
        assert all_counted(run)


def test_a_worker_leaves_though_the_first_checkpoint_is_given_up_again_and_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing leaves exactly once before it, so a leaver's results would stay, and it with them."""
    how = Checkpointing(timeout=0.001)
    flow = Flow("counts", bins=1, delivery="exactly_once", checkpoints=how)
    words = flow.source(ListSource(LINES)).key_by(lambda word: word)
    words.fold("n", lambda: 0, lambda n, word: (n + 1, [word, n + 1])).sink(ListSink())
    with TestFlow(flow, 2) as run:
        until_read(run, 100)
        run.sim.coordinator.leave("l", [WorkerId(1)])
        while sum(event["type"] == "checkpoint_failed" for event in run.events) < 3:
            run.act()
        monkeypatch.setattr(run.sim.coordinator.checkpoints, "_options", ON_COMMAND)
        run.run()
        assert [event["worker"] for event in run.events if event["type"] == "left"] == [1]
        assert all_counted(run)


def test_checkpoints_are_taken_while_a_leaving_worker_waits_for_the_time_of_a_command() -> None:
    """It has heard of the command, so it cannot go before; results may need a checkpoint to leave,
    and that time their leaving."""
    with TestFlow(counting(), 3) as run:
        until_read(run, 100)
        run.sim.coordinator.submit(MoveBins("m", (Bin(0),), WorkerId(1), from_millis(1100)))
        run.act()
        run.sim.coordinator.leave("l", [WorkerId(2)])
        while not run.sim.coordinator.workers.drained:
            run.act()
        until_taken(run)
        assert not any(event["type"] in ("left", "bin_moved") for event in run.events)
        run.run()
        assert [event["worker"] for event in run.events if event["type"] == "left"] == [2]
        assert all_counted(run)


def test_one_checkpoint_is_taken_at_a_time() -> None:
    with TestFlow(counting(), 2) as run:
        until_read(run, 100)
        run.inject(TakeCheckpoint())
        run.inject(TakeCheckpoint())
        (refused,) = [event for event in run.events if event["type"] == "rejected"]
        assert "another checkpoint is under way or requested" in str(refused["reason"])
        run.run()
    assert len(run.world.checkpoints) == 1


def test_as_many_are_kept_as_the_flow_says() -> None:
    with TestFlow(counting(Checkpointing(retained=2)), 2) as run:
        numbers = []
        for records in range(100, 800, 100):
            until_read(run, records)
            until_taken(run)
            numbers.append({int(key.split(b"/")[2]) for key in run.world.in_flight.keys})
    assert numbers[-1] <= {6, 7}, "nothing else of what was in flight stays"
    assert numbers[-1]


def test_a_checkpoint_is_taken_as_often_as_the_flow_says() -> None:
    with TestFlow(counting(Checkpointing(0.05)), 2) as run:
        run.run()
        numbers = [one.number for one in run.world.checkpoints]
        assert len(numbers) >= 3
        assert numbers == [*range(1, 1 + len(numbers))]


def events_of(run: TestFlow, type: str) -> list[dict[str, object]]:
    return [event for event in run.events if event["type"] == type]


@pytest.mark.parametrize("policy", POLICIES)
def test_in_flight_is_as_much_as_the_policy_allows(policy: Policy) -> None:
    flow = counting(Checkpointing(policy=policy, max_inflight=4000))
    with TestFlow(flow, 2) as run:
        for records in range(100, 1000, 100):
            until_read(run, records)
            until_taken(run)
        run.run()
        assert all_counted(run)
        held = [one.in_flight for one in run.world.checkpoints]
        bytes = [event["in_flight_bytes"] for event in events_of(run, "checkpointed")]
    assert {event["policy"] for event in events_of(run, "checkpointed")} == {policy}
    assert any(held) == (policy != "aligned"), f"{held} records, {bytes} bytes"


def test_a_checkpoint_that_takes_too_long_is_given_up_and_the_next_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with TestFlow(counting(Checkpointing(timeout=0.5)), 2) as run:
        until_read(run, 300)
        with monkeypatch.context() as patched:
            patched.setattr(StateWriter, "done", property(lambda _: False))
            run.inject(TakeCheckpoint())
            while not events_of(run, "checkpoint_failed"):
                run.act()
        (said,) = events_of(run, "checkpoint_failed")
        assert "within 0.5 s, as worker 0, worker 1 had not written all;" in str(said["reason"])
        assert not run.world.checkpoints
        until_taken(run)
        world = run.world
    with TestFlow(counting(), 2, world=world) as run:
        run.run()
        assert all_counted(run)


def test_a_flow_ends_where_too_many_in_a_row_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StateWriter, "done", property(lambda _: False))
    monkeypatch.setattr(checkpoint_coordinator, "FAILED_PAUSE", 0.0)
    how = Checkpointing(interval=0.01, timeout=0.02, tolerable_failures=2)
    with (
        TestFlow(counting(how), 2) as run,
        pytest.raises(MeanderError, match="3 checkpoints in a row were cancelled"),
    ):
        run.run()


def test_an_unwritable_state_is_reported_and_the_flow_continues() -> None:
    flow = Flow("f", bins=1)
    records = [[(n, n) for n in range(300)]]
    odd = flow.source(ListSource(records)).map(lambda n: slice(n)).key_by(lambda s: s.stop % 5)
    odd.fold("n", lambda: 0, lambda n, _: (n + 1, n + 1)).sink(ListSink())
    # Alone: no link carries such a value.
    with TestFlow(flow, 1, dead_letters="allow") as run:
        while not events_of(run, "checkpoint_failed"):
            until_read(run, run.counters["read"] + 10)
            run.inject(TakeCheckpoint())
        run.run()
        assert run.counters["read"] == 300
    (said, *_) = events_of(run, "checkpoint_failed")
    assert "an in-flight record cannot be encoded" in str(said["reason"])


def test_what_a_checkpointing_says_wrong_is_named() -> None:
    with pytest.raises(SetupError, match="its policy is 'none'.*'unaligned_max_inflight'"):
        Checkpointing(policy="none")  # type: ignore[arg-type]
    with pytest.raises(SetupError, match="its timeout is 0"):
        Checkpointing(timeout=0)


def given_up(run: TestFlow, monkeypatch: pytest.MonkeyPatch, policy: Policy) -> None:
    """A checkpoint is begun, and given up before its record is written."""
    with monkeypatch.context() as patched:
        patched.setattr(StateWriter, "done", property(lambda _: False))
        patched.setattr(Alignment, "_aligned", lambda *_: False)
        run.inject(TakeCheckpoint(policy))
        while not events_of(run, "checkpoint_failed"):
            run.act()
    (said,) = events_of(run, "checkpoint_failed")
    assert ("had not written all" in str(said["reason"])) == (policy == "unaligned")
    assert ("policy unaligned waits for none of it" in str(said["reason"])) == (
        policy != "unaligned"
    )


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("seed", range(2))
def test_a_worker_that_joins_after_a_failed_checkpoint_starts_no_snapshot(
    policy: Policy, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with TestFlow(counting(Checkpointing(timeout=0.1)), 2, seed) as run:
        until_read(run, 300)
        given_up(run, monkeypatch, policy)
        run.inject(Join())
        run.control({"type": "migrate", "id": "m", "bins": "all", "worker": 2})
        run.run()
        assert all_counted(run)
        assert not run.world.checkpoints


def test_nothing_of_a_checkpoint_that_was_given_up_stays_on_the_topic(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with TestFlow(counting(Checkpointing(timeout=0.1)), 2) as run:
        until_read(run, 300)
        until_taken(run)
        until_read(run, 400)
        given_up(run, monkeypatch, "unaligned")
        run.run()
        kept = {place.key for one in run.world.checkpoints for place in one.locations}
        assert run.world.in_flight.keys == kept


@pytest.mark.parametrize("seed", range(2))
def test_a_worker_that_joins_a_restored_execution_starts_no_snapshot(seed: int) -> None:
    flow = Flow("twice", bins=1)
    words = flow.source(ListSource(LINES)).key_by(lambda word: word)
    counted = words.fold("first", lambda: 0, lambda n, word: (n + 1, word))
    again = counted.key_by(lambda word: word[::-1])
    again.fold("n", lambda: 0, lambda n, word: (n + 1, n + 1)).sink(ListSink())
    world = first_life(flow, seed)
    with TestFlow(flow, 2, seed, world=world) as run:
        run.inject(Join())
        run.control({"type": "migrate", "id": "m", "bins": [0], "worker": 2})
        run.run()
        assert run.states("n") == {f"w{n}"[::-1]: 30 for n in range(40)}
        assert len(run.world.checkpoints) == 2


def test_a_pause_lies_between_the_end_of_one_and_the_next() -> None:
    with TestFlow(counting(Checkpointing(0.001, min_pause=0.02)), 2) as run:
        taking, clock = run.sim.coordinator.checkpoints, run.sim.clock
        turns, under_way = list[float](), False
        while len(turns) < 7:
            run.act()
            if taking.under_way != under_way:
                under_way = taking.under_way
                turns.append(clock.monotonic())
    ends, begins = turns[1::2], turns[2::2]
    assert all(begin - end >= 0.02 for end, begin in zip(ends, begins, strict=True))


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("seed", range(3))
def test_results_come_while_records_in_flight_are_unread_and_the_next_cut_refers_to_these(
    seed: int,
) -> None:
    sink, flow = ListSink(), Flow("counts", bins=1)
    words = flow.source(ListSource(LINES)).key_by(lambda word: word)
    words.fold("n", lambda: 0, lambda n, word: (n + 1, [word, n + 1])).sink(sink)
    world = first_life(flow, seed)
    before = {piece.locations for piece in world.checkpoints[-1].cut.pieces}
    with TestFlow(flow, 2, seed, world=world) as run:
        known, taken = len(sink.values), len(world.checkpoints)
        run.inject(TakeCheckpoint())
        while len(sink.values) == known:
            run.act()
        assert any(worker._in_flight_restore.unread for worker in run.workers)
        while len(world.checkpoints) == taken:
            run.act()
        after = {piece.locations for piece in world.checkpoints[-1].cut.pieces}
        assert before & after, "they are referred to, not copied"
        run.run()
        assert all_counted(run)


Shape = Callable[[Stream[str], ListSink], object]


def seldom(writer: DelayedWriter) -> int:
    """A sink that lags, so much waits for it."""
    if writer._rng.random() < 0.05:
        writer.show_all()
    return writer._delivered


def as_read(words: Stream[str], sink: ListSink) -> None:
    words.map(str.upper).sink(sink)


def by_word(words: Stream[str], sink: ListSink) -> None:
    words.map(str.upper).key_by(lambda word: word).sink(sink)


def counted(order: Order) -> Shape:
    def shape(words: Stream[str], sink: ListSink) -> None:
        keyed = words.map(str.upper).key_by(lambda word: word)
        results = keyed.fold("n", lambda: 0, lambda n, word: (n + 1, n + 1), order=order)
        results.map(lambda n: n).sink(sink)

    return shape


@pytest.mark.parametrize(
    ("shape", "workers"),
    [
        (as_read, (1, 1)), (as_read, (2, 3)), (as_read, (3, 2, 3)), (by_word, (2, 3)),
        (by_word, (3, 2, 3)), (counted("processing"), (1, 1)), (counted("processing"), (2, 3, 2)),
        (counted("event"), (2, 3, 2)),
    ],
)  # fmt: skip
def test_nothing_overtakes_what_was_in_flight_wherever_it_goes_on(
    shape: Shape, workers: Sequence[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """I3: neither what is read anew nor what lay elsewhere, also where the next cut is taken while
    much of the last is unread."""
    monkeypatch.setattr(DelayedWriter, "delivered", seldom)
    for seed in range(2):
        sink, flow, world = ListSink(), Flow("order", bins=3), None
        shape(flow.source(ListSource(LINES)), sink)
        for life, number in enumerate(workers):
            known = len(sink.results)
            with TestFlow(flow, number, seed, world=world) as run:
                if life == len(workers) - 1:
                    run.run()
                else:
                    until_read(run, 0 if life else 300)
                    until_taken(run)
                    world = run.world
                    assert world.checkpoints[-1].in_flight
            newest: dict[tuple[bytes | None, int], int] = {}
            for one in sink.results[known:]:
                place = one.key, one.partition
                assert newest.get(place, -1) < one.offset, f"seed {seed}, life {life}"
                newest[place] = one.offset


@pytest.mark.parametrize("seed", range(3))
def test_records_without_keys_wait_for_none_that_cannot_come_to_them(seed: int) -> None:
    """Where records are applied as they arrive, those with keys go on before what comes behind."""
    flow = Flow("counts", bins=1)
    source, raw = flow.source(ListSource(LINES)), ListSink()
    words = source.key_by(lambda word: word)
    words.fold("n", lambda: 0, lambda n, word: (n + 1, n), order="processing").sink(ListSink())
    source.sink(raw, "raw")
    with TestFlow(flow, 2, seed) as run:
        world, waiting = run.world, set[str]()
        while not {"raw", "key_by exchange"} <= waiting:
            until_taken(run)
            waiting = {piece.node for piece in world.checkpoints[-1].cut.pieces}
    with TestFlow(flow, 3, seed, world=world) as run:
        run.run()
        assert all_counted(run)


def a_chain(sink: ListSink, side: ListSink | None = None) -> Flow:
    """Two functions in a row, perhaps with somebody who reads between them."""
    flow = Flow("chain", bins=1)
    first = flow.source(ListSource(LINES)).map(lambda word: [word])
    first.map(lambda words: [*words, "done"]).sink(sink)
    if side is not None:
        first.sink(side, "side")
    return flow


@pytest.mark.parametrize("seed", range(2))
def test_a_chain_that_was_divided_is_refused_while_records_are_before_it(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I5: what goes on under its name would do half of what they need."""
    with monkeypatch.context() as patched, TestFlow(a_chain(ListSink()), 2, seed) as run:
        patched.setattr(DelayedWriter, "delivered", lambda _: 0)  # so the chain waits for its sink
        until_read(run, 300)
        until_taken(run)
        world = run.world
    now, found = a_chain(sink := ListSink(), ListSink()), world.checkpoints[-1]
    said = "'map-2', which stood behind source 'source', and stands behind .*, then operator 'map'"
    with pytest.raises(SetupError, match=said):
        expect_fits(found, Plan(now))
    expect_fits(found, Plan(now), allow_dropped=True)
    with TestFlow(now, 2, seed, world=world) as run:
        run.run()
        assert run.counters["read"] + found.in_flight >= len(sink.values) > 0
        assert all(isinstance(value, list) and len(value) == 2 for value in sink.values)


@pytest.mark.parametrize("seed", range(2))
def test_a_chain_is_divided_once_nothing_is_in_flight(seed: int) -> None:
    with TestFlow(a_chain(before := ListSink()), 2, seed) as run:
        until_read(run, 300)
        run.inject(TakeCheckpoint("aligned"))
        while not run.world.checkpoints:
            run.act()
        world = run.world
    now = a_chain(sink := ListSink(), ListSink())
    expect_fits(world.checkpoints[-1], Plan(now))
    with TestFlow(now, 2, seed, world=world) as run:
        run.run()
    found = {str(value) for value in (*before.values, *sink.values)}
    assert found == {str([word, "done"]) for part in LINES for _, word in part}


def pass_on(context: Context, n: int, word: str) -> int:
    context.emit(word)
    return n


FEW = [part[:50] for part in LINES]
"""Each time takes all its rounds."""


def keep(context: Context, n: int, word: str) -> int:
    return n


def going_round(source: Stream[str], sink: ListSink, order: Order = "event") -> None:
    """A loop that records without keys enter, and round which those with keys go."""

    def body(words: Stream[str]) -> tuple[Stream[str], Stream[str]]:
        longer = words.filter(lambda word: len(word) < 5).map(lambda word: word + "+")
        return longer.key_by(lambda word: word[:-1]), words.map(lambda word: word)

    left = source.iterate("round", body)
    left.sink(sink, "left")
    counts = left.key_by(lambda word: word[:2])
    counts.fold("n", lambda: 0, lambda n, word: (n + 1, n), order=order).sink(ListSink())


@pytest.mark.parametrize("order", ["event", "processing"])
@pytest.mark.parametrize("seed", range(3))
def test_a_loop_goes_on_round_which_keys_come_and_go(
    seed: int, order: Order, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I5, I7: what lies at a place of the loop with keys, and at another without."""
    monkeypatch.setattr(checkpoint_writer, "ROWS", 4)
    flow, sink = Flow("round", bins=2), ListSink()
    going_round(flow.source(ListSource(FEW)), sink, order)
    with TestFlow(flow, 2, seed) as run:
        world, waiting = run.world, set[tuple[str, bool]]()
        while not {("round", False), ("key_by exchange", True)} <= waiting:
            until_taken(run)
            waiting = {(piece.node, piece.keyed) for piece in world.checkpoints[-1].cut.pieces}
    with TestFlow(flow, 3, seed, world=world) as run:
        run.run()
        found = Counter(word[:2] for part in FEW for _, word in part for _ in range(len(word), 6))
        assert run.states("n") == found
    assert {result.key for result in sink.results} == {None}


@pytest.mark.parametrize("seed", range(2))
def test_records_of_outside_wait_for_a_loop_that_was_defined_before_them(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I7: what they are to come behind goes on first, though their operator is a later one."""
    monkeypatch.setattr(checkpoint_writer, "ROWS", 4)
    flow = Flow("loop", bins=2)
    source = flow.source(ListSource(FEW))

    def body(words: KeyedStream[str]) -> tuple[Stream[str], KeyedStream[str]]:
        seen = words.fold("seen", lambda: 0, lambda n, word: (n + 1, word))
        others = source.map(str.lower)
        others.sink(ListSink(), "behind")
        met = seen.connect(others.key_by(len), "met", lambda: 0, pass_on, keep)
        again, left = met.split(lambda w: "left" if len(w) > 4 else "again", "again", "left")
        return again.map(lambda word: word + "+"), left

    left = source.key_by(lambda word: word).iterate("round", body).key_by(lambda word: word[:2])
    left.fold("n", lambda: 0, lambda n, word: (n + 1, n), order="processing").sink(ListSink())
    with monkeypatch.context() as patched, TestFlow(flow, 2, seed) as run:
        patched.setattr(DelayedWriter, "delivered", lambda _: 0)  # so that they wait for a sink
        world, waiting = run.world, set[str]()
        while not {"map", "seen"} <= waiting:
            until_taken(run)
            waiting = {piece.node for piece in world.checkpoints[-1].cut.pieces}
    with TestFlow(flow, 3, seed, world=world) as run:
        run.run()
        assert run.states("n") == Counter(word[:2] for part in FEW for _, word in part)
