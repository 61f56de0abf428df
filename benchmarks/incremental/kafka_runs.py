"""The way through Kafka and Spark: the degrees of a graph on two workers of `meander run`.

The records of a round have one timestamp, and a result names its time in a header. So a round ends
at its last result, by the clock of the broker or of the process that reads results.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from itertools import count
from pathlib import Path
from typing import cast

import numpy as np

from benchmarks import latency, load, running
from benchmarks.incremental.found import Float64s, Found, Tick
from benchmarks.incremental.graph import Changes, Graph
from benchmarks.incremental.scale import Scale
from benchmarks.running import PARTITIONS, SETTINGS, Running
from meander.app.measurement.open_loop import Load, LoadRecord, Results, Wave, open_loop
from meander.connectors.kafka.client import ConsumedMessage
from meander.connectors.local_broker.broker import LocalBroker

FLOW = Path(__file__).with_name("kafka_flow.py")
NODES, EDGES, CHANGES = 100_000, 1_000_000, 1_000_000
ROUNDS = (1_000, 10_000)
PER_MS = 10_000
"""The first edges of one timestamp."""
QUIET = 5.0
"""Seconds without a result after which none is to come."""
RATE, SECONDS = 1_000, 20.0
TIME = "meander.time"
BLOCK = 10_000


def rates(scale: Scale, tick: Tick) -> Found:
    """Measure changes per second of a backlog, in rounds of each size."""
    found, graph, changes = Found(), Graph(scale(NODES), scale(EDGES)), scale(CHANGES)
    with LocalBroker() as broker:
        _warm(broker.bootstrap)
        for size in ROUNDS:
            with load.topic(broker.bootstrap, "graph", PARTITIONS) as source:
                load.write(broker.bootstrap, source, _first(graph))
                load.write(broker.bootstrap, source, _rounds(graph, changes, size))
                arrived, times = _drained(broker.bootstrap, source)
            begin = load.START_MS + _span(graph)
            seconds = (arrived.max() - arrived[times < begin].max()) / 1000
            found.figures[f"{size}_per_s"] = changes / seconds
            tick(graph.edges + changes)
    return found


def latencies(scale: Scale, tick: Tick) -> Found:
    """Measure how long the results of changes at a modest rate take, from their timestamp on."""
    found, graph = Found(), Graph(scale(NODES), scale(EDGES))
    seconds = SECONDS if scale.share == 1 else 5.0
    with LocalBroker() as broker:
        _warm(broker.bootstrap)
        with load.topic(broker.bootstrap, "graph", PARTITIONS) as source:
            load.write(broker.bootstrap, source, _first(graph))
            with running.flow(broker.bootstrap, source, {}, module=FLOW) as flow:
                _until_quiet(flow)
                settings = {"bootstrap.servers": broker.bootstrap}
                sent = Load(source, Wave.fixed(RATE), partial(_load, graph=graph))
                with open_loop(settings, sent, Results([flow.topic], _millis)) as loop:
                    began = loop.began
                    time.sleep(latency.WARM_UP + seconds)
                measured = loop.found()
    late = measured.identities > 1000 * (began + latency.WARM_UP)
    found.note("result", (measured.arrived - measured.identities / 1000)[late])
    tick(1)
    return found


def _warm(bootstrap: str) -> None:
    latency.echo(bootstrap, rate=5_000, seconds=latency.WARMTH / 3)


def _first(graph: Graph) -> Iterator[tuple[bytes, int]]:
    """Yield the first edges as records with their timestamps."""
    for first in range(0, graph.edges, BLOCK):
        for number, value in enumerate(_values(graph.initial(first, BLOCK)), first):
            yield value, load.START_MS + number // PER_MS


def _span(graph: Graph) -> int:
    """Return the milliseconds of the first edges."""
    return -(-graph.edges // PER_MS)


def _rounds(graph: Graph, changes: int, size: int) -> Iterator[tuple[bytes, int]]:
    """Yield changes as records, so many of each timestamp."""
    begin = load.START_MS + _span(graph)
    for first in range(0, changes, BLOCK):
        block = graph.changes(first, min(BLOCK, changes - first))
        for number, value in enumerate(_values(block), first):
            yield value, begin + number // size


def _load(dues: Iterator[float], graph: Graph) -> Iterator[LoadRecord]:
    """Yield changes without end, each once it is due."""
    for first in count(0, BLOCK):
        for number, value in enumerate(_values(graph.changes(first, BLOCK)), first):
            next(dues)
            yield LoadRecord(value[: load.KEY], value, number % PARTITIONS, [])


def _values(changes: Changes) -> Iterator[bytes]:
    return (b"[%d,%d,%d]" % row for row in changes.rows())


def _millis(result: ConsumedMessage) -> int:
    """Return the timestamp of the records that a result follows from."""
    for name, value in result.headers() or ():
        if name == TIME and value is not None:
            return int(value)
    raise AssertionError(f"a result has no header {TIME!r}")


def _drained(bootstrap: str, source: str) -> tuple[Float64s, Float64s]:
    """Return when each result of a backlog came, by the broker's clock, and its timestamp."""
    with running.flow(bootstrap, source, {}, module=FLOW, kafka=SETTINGS) as flow:
        _until_quiet(flow)
        with load.reading(bootstrap, flow.topic) as messages:
            found = [
                (message.timestamp()[1], _millis(cast(ConsumedMessage, message)))
                for message in messages
            ]
    arrived, times = np.array(found, np.float64).T
    return arrived, times


def _until_quiet(flow: Running) -> None:
    """Return once some results have come, and no more do."""
    last = 0, time.monotonic()

    def quiet() -> bool:
        nonlocal last
        results, now = flow.results(), time.monotonic()
        if results != last[0] or not results:
            last = results, now
        return now - last[1] > QUIET

    flow.until(quiet, 0.2)
