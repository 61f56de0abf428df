"""The text that Prometheus reads follows from the workers' beats, and from nothing else."""

from __future__ import annotations

import msgpack
import pytest
from msgspec import structs

from meander.app.protocol.messages import FROM_WORKER, SourceStats
from meander.app.status.metrics import COUNTERS, MetricsCollector
from meander.app.status.observer import StatusSnapshot
from meander.app.status.worker_stats import WorkerStats
from meander.schemas.status import BlockedFrontier, Checkpointed
from meander.state.times.time import from_millis
from tests.support.status.heartbeats import ONE, ZERO, beat, durations, read, text

FIGURES = StatusSnapshot(
    workers=2,
    registered=2,
    heard=WorkerStats({ZERO: beat(1, {1: 70}, {1: 30}), ONE: beat(2, {0: 30}, {0: 20})}),
    frontiers={"out": 1_700_000_000_500},
    lags={("flights", 0): 0, ("flights", 1): 12},
    bins={ZERO: 100, ONE: 156},
    frontier_blockers=[
        BlockedFrontier(
            probe="out", by="...", since_ms=1_700_000_000_000, awaited=True, kind="source",
            name="lines", worker=1, partition=12,
        ),
    ],
)  # fmt: skip


@pytest.fixture
def seen() -> dict[str, dict[tuple[str, ...], float]]:
    """Samples by name, then by the values of their labels in the order of the labels' names."""
    board = MetricsCollector()
    board.show(FIGURES, 3, {"completed": 5, "heartbeat": 9, "bin_moved": 40, "left": 1})
    return read(text(board))


Seen = dict[str, dict[tuple[str, ...], float]]


def test_counters_stand_by_worker(seen: Seen) -> None:
    assert seen["meander_records_read_total"] == {("0",): 1, ("1",): 2}
    assert seen["meander_records_written_total"] == {("0",): 2, ("1",): 4}
    assert seen["meander_dead_letters_total"] == {("0",): 3, ("1",): 3}
    assert seen["meander_late_adjusted_total"] == {("0",): 1, ("1",): 1}


def test_counters_of_a_worker_that_left_are_kept() -> None:
    board = MetricsCollector()
    one, two = beat(1, {}, {}), beat(2, {}, {})
    figures = StatusSnapshot(
        1, 1, WorkerStats({ZERO: one}).without(two).without(two), bins={ZERO: 256}
    )
    board.show(figures, 0, {})
    seen = read(text(board))
    assert seen["meander_records_read_total"] == {("0",): 1, ("left",): 4}
    assert seen["meander_operator_records_in_total"] == {("count", "0"): 1, ("count", "left"): 4}
    assert seen["meander_operator_seconds_count"]["count", "left"] == 10
    assert seen["meander_operator_busy_seconds_total"]["count", "left"] == 0.5
    assert seen["meander_delivery_seconds_count"]["lines", "left"] == 4
    assert seen["meander_worker_cpu_seconds_total"] == {("0",): 0.5, ("left",): 2.0}
    assert seen["meander_worker_active_seconds_total"]["left",] == 1.0
    assert seen["meander_worker_backpressure_seconds_total"]["left",] == 0.5
    assert seen["meander_inflight_bytes"] == {("0",): 100}, "it holds nothing any more"
    for name, _ in COUNTERS.values():
        assert len(seen[f"{name}_total"]) == 2, "also of what has not been counted yet"


def test_times_of_workers_stand_by_worker(seen: Seen) -> None:
    assert seen["meander_worker_cpu_seconds_total"] == {("0",): 0.5, ("1",): 1.0}
    assert seen["meander_worker_active_seconds_total"] == {("0",): 0.25, ("1",): 0.5}
    assert seen["meander_worker_backpressure_seconds_total"] == {("0",): 0.125, ("1",): 0.25}


def test_operators_say_what_they_take_and_send_and_how_long_that_takes(seen: Seen) -> None:
    assert seen["meander_operator_records_in_total"] == {("count", "0"): 1, ("count", "1"): 2}
    assert seen["meander_operator_records_out_total"] == {("count", "0"): 2, ("count", "1"): 4}
    assert seen["meander_operator_busy_seconds_total"]["count", "1"] == 0.25
    buckets = seen["meander_operator_seconds_bucket"]
    assert buckets["0.0001", "count", "0"] == 4
    assert buckets["0.0003", "count", "0"] == buckets["+Inf", "count", "0"] == 5
    assert seen["meander_operator_seconds_sum"]["count", "0"] == 0.5
    assert seen["meander_operator_seconds_count"]["count", "0"] == 5


def test_operators_say_how_many_keys_they_have_and_have_forgotten(seen: Seen) -> None:
    assert seen["meander_operator_keys"] == {("count", "0"): 5, ("count", "1"): 10}
    assert seen["meander_operator_layer_bytes"] == {("count", "0"): 50, ("count", "1"): 100}
    assert seen["meander_operator_keys_forgotten_total"]["count", "1"] == 6


def test_keys_of_a_worker_that_left_are_others_and_what_it_has_forgotten_counts() -> None:
    board, one = MetricsCollector(), beat(1, {}, {})
    board.show(StatusSnapshot(1, 1, WorkerStats({ZERO: one}).without(one), bins={ZERO: 4}), 0, {})
    seen = read(text(board))
    assert seen["meander_operator_keys"] == {("count", "0"): 5, ("count", "left"): 0}
    assert seen["meander_operator_keys_forgotten_total"]["count", "left"] == 3


def test_partitions_have_frontiers_lags_and_delays(seen: Seen) -> None:
    assert seen["meander_source_frontier_seconds"] == {
        ("1", "lines", "0"): 5.0, ("11", "lines", "0"): 7.0,
        ("2", "lines", "1"): 5.0, ("12", "lines", "1"): 7.0,
    }  # fmt: skip
    assert seen["meander_lag_records"] == {("0", "flights"): 0, ("1", "flights"): 12}
    assert seen["meander_delivery_seconds_count"] == {("lines", "0"): 2, ("lines", "1"): 2}


def test_links_and_workers_say_what_waits_and_who_owns_what(seen: Seen) -> None:
    assert seen["meander_link_queued_bytes"] == {("1", "0"): 50, ("0", "1"): 0}
    assert seen["meander_inflight_bytes"] == {("0",): 100, ("1",): 200}
    assert seen["meander_spilled_bytes"] == {("0",): 7, ("1",): 14}
    assert seen["meander_bins"] == {("0",): 100, ("1",): 156}
    assert seen["meander_workers"] == seen["meander_workers_registered"] == {(): 2}


def test_migrations_are_under_way_or_completed(seen: Seen) -> None:
    assert seen["meander_migrations"] == {(): 3}
    assert seen["meander_migrations_completed_total"] == {(): 5}
    assert seen["meander_bins_moved_total"] == {(): 40}
    assert seen["meander_workers_left_total"] == {(): 1}
    assert seen["meander_workers_joined_total"] == {(): 0}
    assert seen["meander_commands_rejected_total"] == {(): 0}


def test_what_holds_a_frontier_back_is_named_with_the_seconds_it_has_stood(seen: Seen) -> None:
    assert seen["meander_frontier_seconds"] == {("out",): 1_700_000_000.5}
    (labels,) = seen["meander_frontier_held_seconds"]
    assert labels == ("yes", "source", "lines", "12", "out", "1")
    assert seen["meander_frontier_held_seconds"][labels] > 1_000_000


def test_a_flow_that_has_only_begun_has_workers_and_no_more() -> None:
    board = MetricsCollector()
    board.show(StatusSnapshot(2, 1), 0, {})
    seen = read(text(board))
    assert (seen["meander_workers"], seen["meander_workers_registered"]) == ({(): 2}, {(): 1})
    assert "meander_records_read_total" not in seen


CHECKPOINTED = Checkpointed(
    id="", number=3, savepoint="", policy="unaligned", ms=250.0, alignment_ms=0.0, write_ms=9.1,
    state_bytes=2048, in_flight_bytes=100, in_flight=2,
)  # fmt: skip


def test_each_sample_has_the_flow_as_a_label() -> None:
    board = MetricsCollector("counts")
    board.show(FIGURES, 3, {})
    families = [*board.collect()]
    assert {sample.labels["flow"] for one in families for sample in one.samples} == {"counts"}
    bins = next(one for one in families if one.name == "meander_bins")
    assert bins.samples[1].labels == {"flow": "counts", "worker": "1"}


def test_the_last_checkpoint_has_an_age_a_duration_and_sizes() -> None:
    board = MetricsCollector()
    told = {"checkpointed": 4, "checkpoint_failed": 1, "recovering": 2}
    board.show(FIGURES, 0, told)
    seen = read(text(board))
    assert not [name for name in seen if name.startswith("meander_checkpoint_")]
    board.restored(1_700_000_000_000)
    restored = read(text(board))["meander_checkpoint_age_seconds"][()]
    board.note(CHECKPOINTED)
    seen = read(text(board))
    assert seen["meander_checkpoint_age_seconds"][()] < restored
    assert seen["meander_checkpoint_seconds"] == {(): 0.25}
    assert seen["meander_checkpoint_state_bytes"] == {(): 2048}
    assert seen["meander_checkpoint_in_flight_bytes"] == {(): 100}
    assert seen["meander_checkpoints_total"] == {(): 4}
    assert seen["meander_checkpoints_failed_total"] == {(): 1}
    assert seen["meander_restarts_total"] == {(): 2}


def test_a_beat_whose_lists_do_not_fit_together_is_none() -> None:
    fields = msgpack.unpackb(beat(1, {}, {}).to_bytes())
    fields["sources"]["lines"]["times"].append(5)
    with pytest.raises(ValueError, match="the message is not expected here"):
        FROM_WORKER.read(msgpack.packb(fields))
    fields = msgpack.unpackb(beat(1, {}, {}).to_bytes())
    fields["operators"]["count"]["durations"]["counts"].append(5)
    with pytest.raises(ValueError, match="the message is not expected here"):
        FROM_WORKER.read(msgpack.packb(fields))


def test_a_beat_stays_small_with_a_thousand_partitions() -> None:
    thousand = SourceStats(
        partitions=list(range(1000)), times=[from_millis(1_700_000_000_000)] * 1000,
        states=["sending"] * 1000, delays=durations(1, seconds=1.0),
    )  # fmt: skip
    large = structs.replace(beat(1, {1: 0}, {1: 0}), sources={"lines": thousand})
    assert len(large.to_bytes()) < 24_000
    assert len(beat(1, {1: 70}, {1: 70}).to_bytes()) < 600
    assert FROM_WORKER.read(large.to_bytes()) == large
