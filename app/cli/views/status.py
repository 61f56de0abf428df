"""`meander status`: print an overview as tables, or as one JSON object."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import to_builtins

from meander.app.cli.views.rescale import sentence, waits
from meander.app.common.output import CommandOutput, at_millis, size
from meander.app.status.overview import Overview, share_command
from meander.dataflow.metrics.histogram import BOUNDS
from meander.schemas.status import Heartbeat, LongCall, Migration, Restoring

_DRAWN_TOGETHER = {"type", "driver", "execution", "moving", "omitted"}
"""Fields of a heartbeat that are shown only together with other events, or not at all."""


def fields(seen: Overview, state: str, now: int) -> dict[str, object]:
    """Return an overview as one JSON object; `now` is in milliseconds since 1970."""
    heartbeat = to_builtins(seen.heartbeat)
    return {
        "flow": seen.flow, "state": state, "reason": seen.reason,
        "heartbeat_ms": seen.heartbeat_ms,
        "heartbeat_age_ms": None if seen.heartbeat_ms is None else now - seen.heartbeat_ms,
        **{name: value for name, value in heartbeat.items() if name not in _DRAWN_TOGETHER},
        "worker_changes": to_builtins(seen.worker_changes),
        "migrations": to_builtins(list(seen.migrations.values())),
        "migrations_ended_since_ms": seen.since_ms, "migrations_omitted": seen.omitted,
    }  # fmt: skip


def tables(output: CommandOutput, seen: Overview, state: str, now: int) -> None:
    """Print an overview as tables; a table without rows is left out."""
    last = seen.heartbeat
    age = None if seen.heartbeat_ms is None else (now - seen.heartbeat_ms) / 1000
    output.table(
        f"flow {seen.flow}",
        ["state", "workers", "registered", "lag", "seconds since heartbeat", "reason"],
        [[state, last.workers, last.registered, last.lag, age, seen.reason]],
    )
    for line in _awaited(last, state, seen.flow):
        output.say(line)
    _table(output, "counters", ["counter", "value"], [[*pair] for pair in last.counters.items()])
    if state == "running":
        _frontier_table(output, seen)
        _operator_table(output, seen)
        _latency_table(output, seen)
        _place_tables(output, seen)
    lags = [[one.topic, str(one.partition), one.records] for one in last.lags]
    _table(output, "lag", ["topic", "partition", "records"], lags)
    bytes = map(size, last.inflight), map(size, last.spilled)
    executors = last.executors or [""] * len(last.bins)
    workers = zip(map(str, last.worker_ids), last.bins, *bytes, executors, strict=True)
    _table(
        output,
        "workers",
        ["worker", "bins", "in flight", "on disk", "runs in"],
        [[*row] for row in workers],
    )
    comings = [[str(one.worker), sentence(one), one.id] for one in seen.worker_changes]
    _table(output, "worker changes", ["worker", "change", "id"], comings)
    rows: list[list[object]] = [
        [
            one.id, one.state, _how(one), _bins(one), size(one.bytes), one.keys,
            one.ms, _when(one),
        ]
        for one in seen.migrations.values()
        if one.state != "rejected"
    ]  # fmt: skip
    columns = ["id", "state", "strategy", "bins", "bytes", "keys", "ms", "time (UTC), or wait"]
    _table(output, "migrations", columns, rows)
    if done := last.migrations_completed:
        moved = last.bins_moved
        output.say(
            f"Since the driver started: {done:,} migrations completed, {moved:,} bins moved."
        )
    for one in seen.migrations.values():
        if one.state == "rejected":
            output.say(f"{one.id}: rejected: {one.reason}")
    if seen.since_ms is not None:
        since = at_millis(seen.since_ms)
        output.say(f"Not shown: migrations that ended before {since} (UTC); --all shows them.")
    for omitted, what in (
        (seen.omitted, "migrations in progress"),
        (last.lags_omitted, "partitions with less lag"),
        (last.throughput_omitted, "operators"),
        (last.frontier_blockers_omitted, "blocked frontiers"),
        (last.calls_omitted, "workers in shorter calls"),
        (last.latencies_omitted, "sources with a latency"),
        (last.partitions_omitted, "partitions at later times"),
        (last.queues_omitted, "links with shorter queues"),
    ):
        if omitted:
            output.say(f"Not shown: {omitted:,} more {what}.")
    if last.metrics and state == "running":
        output.say(f"Metrics: {last.metrics} on the driver's machine.")


def _table(
    output: CommandOutput, title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]
) -> None:
    if rows:
        output.table(title, columns, rows)


def _starts(heartbeat: Heartbeat) -> str:
    """Return how far the start of a flow is.

    >>> from msgspec.structs import replace
    >>> from meander.app.status.overview import SILENCE
    >>> _starts(replace(SILENCE, workers=2, registered=1))
    'The flow starts: 1 of 2 workers have registered.'
    """
    if heartbeat.bins or not heartbeat.workers:
        return "The flow starts."  # There is no heartbeat of this execution yet.
    registered, workers = heartbeat.registered, heartbeat.workers
    return f"The flow starts: {registered} of {workers} workers have registered."


def _awaited(heartbeat: Heartbeat, state: str, flow: str) -> Iterator[str]:
    """Yield a sentence for each reason why workers do not read, do not join or
    leave, or own no bin."""
    if state == "starting":
        yield _starts(heartbeat)
    if heartbeat.restoring is not None:
        yield _restores(heartbeat.restoring)
    yield from map(_blocks, heartbeat.calls)
    if state != "running":
        return
    if heartbeat.rescale is not None:
        yield waits(heartbeat.rescale)
    elif heartbeat.without_bins:
        yield _without_bins(heartbeat, flow)


def _without_bins(heartbeat: Heartbeat, flow: str) -> str:
    """Return which workers own no bin, and the remedy."""
    some = heartbeat.without_bins
    who = f"Worker {some[0]} owns" if len(some) == 1 else f"Workers {', '.join(map(str, some))} own"
    return f"{who} no bin: {share_command(flow, heartbeat.workers)} gives each its share."


def _blocks(call: LongCall) -> str:
    """Return which call blocks a worker.

    >>> _blocks(LongCall(worker=1, operator="ask", seconds=13.0))
    "A call of operator 'ask' has blocked worker 1 for 13 s."
    """
    by = f"A call of operator {call.operator!r}" if call.operator else "A call"
    return f"{by} has blocked worker {call.worker} for {call.seconds:g} s."


def _bins(one: Migration) -> str:
    """Return how many bins have moved, of those that must move.

    >>> _bins(Migration(id="m", state="completed", bins=256, moved=171, already_there=85))
    '171/171 (85 already there)'
    """
    there = f" ({one.already_there:,} already there)" if one.already_there else ""
    there += f" ({one.fetched:,} prefetched)" if one.fetched else ""
    return f"{one.moved}/{one.bins - one.already_there}{there}"


def _restores(one: Restoring) -> str:
    """Return how much of the checkpoint the workers have loaded.

    >>> _restores(Restoring(bytes=3 << 20, total=12 << 20, rate=1 << 20, eta=9.0))
    'The workers restore states: 3.1 MB of 12.6 MB (1.0 MB/s, about 9 s left).'
    """
    left = "" if one.eta is None else f", about {one.eta:g} s left"
    read = f"{size(one.bytes)} of {size(one.total)}"
    return f"The workers restore states: {read} ({size(int(one.rate))}/s{left})."


def _how(one: Migration) -> str:
    return f"precopy {one.strategy}" if one.precopy else one.strategy


def _when(one: Migration) -> str:
    """Return the time of a migration, how long it may still take, or why it waits.

    >>> _when(Migration(id="m", state="moving", eta=2.5))
    'about 2.5 s left'
    """
    if one.eta is not None:
        return f"about {one.eta:g} s left"
    return one.reason if one.at_ms is None else at_millis(one.at_ms)


def _frontier_table(output: CommandOutput, seen: Overview) -> None:
    blockers = {one.probe: one for one in seen.heartbeat.frontier_blockers}
    rows: list[list[object]] = []
    for name, millis in seen.heartbeat.frontiers.items():
        if (one := blockers.get(name)) is None:
            rows.append([name, at_millis(millis), "", None, ""])
            continue
        seconds = max(0, (seen.heartbeat_ms or 0) - one.since_ms) / 1000
        rows.append([name, at_millis(millis), one.by, seconds, one.awaited])
    columns = ["probe or sink", "frontier (UTC)", "held back by", "for s", "awaited"]
    _table(output, "frontiers", columns, rows)


def _operator_table(output: CommandOutput, seen: Overview) -> None:
    rows: list[list[object]] = []
    for one in seen.heartbeat.throughput:
        took = (_ms(one.p50), _ms(one.p99)) if one.count else (None, None)
        rows.append([one.operator, one.received, one.sent, *took])
    columns = ["operator", "records in/s", "records out/s", "p50 ms", "p99 ms"]
    _table(output, "operators", columns, rows)
    states: list[list[object]] = [
        [one.operator, one.keys, size(one.bytes), one.forgotten]
        for one in seen.heartbeat.throughput
        if one.keys or one.bytes or one.forgotten
    ]
    _table(output, "states", ["operator", "keys", "layers", "forgotten keys"], states)


def _latency_table(output: CommandOutput, seen: Overview) -> None:
    rows = [[f"{one.of} of {one.name}", one.count, _ms(one.p50), _ms(one.p99)]
            for one in seen.heartbeat.latencies]  # fmt: skip
    _table(output, "latency", ["latency of", "chunks of records", "p50 ms", "p99 ms"], rows)


def _ms(seconds: float | None) -> object:
    return f"over {BOUNDS[-1] * 1000:,.0f}" if seconds is None else seconds * 1000


def _place_tables(output: CommandOutput, seen: Overview) -> None:
    places = [[one.source, str(one.partition), str(one.worker), at_millis(one.millis)]
              for one in seen.heartbeat.partitions]  # fmt: skip
    columns = ["source", "partition", "worker", "frontier (UTC)"]
    _table(output, "source partitions", columns, places)
    links = [[f"{one.worker} to {one.to}", size(one.bytes)] for one in seen.heartbeat.queues]
    _table(output, "links", ["from worker", "queued"], links)
