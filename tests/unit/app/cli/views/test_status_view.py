"""What `meander status` prints of an overview."""

from __future__ import annotations

from io import StringIO

from msgspec import structs, to_builtins
from rich.console import Console

from meander.app.cli.views.status import fields, tables
from meander.app.common.output import CommandOutput, size
from meander.app.status.overview import SILENCE, Overview
from meander.schemas.status import (
    BlockedFrontier,
    Latency,
    LongCall,
    Migration,
    RescaleProgress,
    Throughput,
)


def said(**fields: object) -> Overview:
    """By the last heartbeat."""
    return Overview("f", heartbeat=structs.replace(SILENCE, **fields))


def printed(seen: Overview, state: str = "running") -> str:
    """As a terminal shows it."""
    console = Console(file=StringIO(), width=200)
    tables(CommandOutput(console, as_json=False), seen, state, 9)
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def test_what_a_newer_flow_waits_for_and_times_is_shown_as_it_says() -> None:
    blocked = BlockedFrontier(
        probe="out", by="the moon", since_ms=5, awaited=True, kind="moon", name=""
    )
    took = Latency(of="eclipse", name="sun", count=1, seconds=0.1, p50=0.1, p99=0.1)
    seen = said(frontiers={"out": 5}, frontier_blockers=[blocked], latencies=[took])
    assert "the moon" in printed(seen)
    assert "eclipse of sun" in printed(seen)
    assert fields(seen, "running", 9)["frontier_blockers"] == [to_builtins(blocked)]


def test_the_status_of_a_flow_that_starts_says_so_and_has_no_empty_tables() -> None:
    claimed = printed(Overview("f", state="starting"), "starting")
    assert "The flow starts." in claimed
    assert not any(title in claimed for title in ("counters", "workers\n", "migrations", "lag\n"))
    assert "1 of 2 workers have registered" in printed(said(workers=2, registered=1), "starting")


def test_operators_show_how_long_records_are_in_them_as_far_as_that_was_timed() -> None:
    rates = [
        Throughput(operator="count", received=7.0, sent=8.0, count=9, p50=0.003, p99=None),
        Throughput(operator="lines", received=0.0, sent=7.0, count=0, p50=0.0001, p99=0.0001),
    ]
    lines = printed(said(throughput=rates)).splitlines()
    shown = {words[0]: words[1:] for words in map(str.split, lines) if words}
    assert shown["count"] == ["7.0", "8.0", "3.0", "over", "30,000"]
    assert shown["lines"] == ["0.0", "7.0", "-", "-"]


def test_operators_with_states_show_their_keys_and_forgotten_keys() -> None:
    state = {"keys": 12_000, "bytes": 5 << 20, "forgotten": 7}
    rates = [
        Throughput(operator=name, received=1.0, sent=1.0, count=0, p50=None, p99=None, **sizes)
        for name, sizes in (("seen", state), ("lines", {}))
    ]
    titled = printed(said(throughput=rates)).partition("states")[2]
    shown = {words[0]: words[1:] for words in map(str.split, titled.splitlines()) if words}
    assert shown["seen"] == ["12,000", *size(5 << 20).split(), "7"]
    assert "lines" not in shown


def test_a_migration_of_bins_that_were_there_already_reads_as_complete() -> None:
    moved = Migration(id="m", state="completed", bins=256, moved=171, already_there=85)
    seen = said(migrations_completed=1200, bins_moved=4000)
    seen.migrations = {"m": moved, "n": Migration(id="n", state="moving", bins=256, moved=171)}
    shown = printed(seen)
    assert "171/171 (85 already there)" in shown
    assert "171/256 " in shown
    assert "1,200 migrations completed, 4,000 bins moved" in shown


def test_a_long_call_of_a_worker_is_shown() -> None:
    calls = [LongCall(worker=n, operator=name, seconds=13.0) for n, name in enumerate(["ask", ""])]
    shown = printed(said(calls=calls))
    assert "A call of operator 'ask' has blocked worker 0 for 13 s." in shown
    assert "A call has blocked worker 1 for 13 s." in shown


def test_a_rescale_in_progress_says_what_it_waits_for() -> None:
    waiting = RescaleProgress("r1", joining=[2], leaving=[], waits_for="a slot is free (worker 2)")
    shown = printed(said(rescale=waiting))
    assert "Command r1 waits until a slot is free (worker 2)." in shown
    assert fields(said(rescale=waiting), "running", 9)["rescale"] == to_builtins(waiting)


def test_workers_without_bins_are_named_with_the_remedy() -> None:
    empty = said(workers=3, without_bins=[2])
    remedy = "Worker 2 owns no bin: meander rescale f --workers 3 gives each its share."
    assert remedy in printed(empty)
    moving = RescaleProgress("r1", joining=[], leaving=[], waits_for="")
    assert "owns no bin" not in printed(said(workers=3, without_bins=[2], rescale=moving))


def test_deliveries_are_counted_in_chunks() -> None:
    took = Latency(of="delivery", name="lines", count=7, seconds=0.1, p50=0.1, p99=0.1)
    assert "chunks of records" in printed(said(latencies=[took]))


def test_as_json_each_field_of_a_heartbeat_stands_beside_what_follows_from_other_events() -> None:
    shown = fields(Overview("f"), "never started", 9)
    assert shown.keys() == {
        "flow", "state", "reason", "workers", "registered", "heartbeat_ms", "heartbeat_age_ms",
        "heartbeat_timeout", "lag", "counters", "frontiers", "worker_ids", "bins", "inflight",
        "spilled", "executors", "metrics",
        "lags", "lags_omitted", "throughput", "throughput_omitted",
        "frontier_blockers", "frontier_blockers_omitted",
        "calls", "calls_omitted",
        "queues", "queues_omitted", "partitions", "partitions_omitted",
        "latencies", "latencies_omitted", "worker_changes", "migrations_completed", "bins_moved",
        "migrations", "migrations_ended_since_ms", "migrations_omitted", "restoring", "rescale",
        "without_bins",
    }  # fmt: skip
