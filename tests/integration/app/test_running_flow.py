"""A running flow is looked at: metrics over HTTP and the status say what it does, and what it
waits for."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.kafka.brokers import Broker
from tests.support.kafka.topics import PATIENCE, Record, create_topic, produce, until
from tests.support.process.flow_process import (
    MEANDER,
    FlowProcess,
    flow_folder,
    lines,
    meander,
    run_command,
)

TEXTS = [f"w{i % 40} w{i % 7}" for i in range(400)]
SILENT = 3
"""The partition that is left without records."""

HELD = """
from meander import KafkaSink, KafkaSource
from meander import Flow
from meander.dataflow.interfaces import SourceOptions

# A worker has read as much as it may before it has read all of its partitions.
flow = Flow("held", max_inflight=6000)
# An hour passes before a partition without records lets the others go on.
lines = KafkaSource("{prefix}lines", value="str", options=SourceOptions(idle_after=3600.0))
flow.source(lines, "lines").map(str.upper).sink(KafkaSink("{prefix}counts", value="str"))
"""

AGAIN = """
words.key_by(len).fold("lengths", init=lambda: 0, step=count)
"""
"""One more stateful operator: each bin has two parts."""

Shown = dict[tuple[str, ...], tuple[float, ...]]
"""Numbers by what they are of."""

SHOWN: dict[str, Callable[[dict[str, Any]], tuple[tuple[str, ...], tuple[float, ...]]]] = {
    "queues": lambda one: ((str(one["worker"]), str(one["to"])), (one["bytes"],)),
    "partitions": lambda one: (
        (one["source"], str(one["partition"]), str(one["worker"])), (one["millis"] / 1000,)
    ),
    "latencies": lambda one: ((one["of"], one["name"]), _took(one)),
    "throughput": lambda one: (("operator", one["operator"]), _took(one)),
}  # fmt: skip
"""What the status says in each of its lists, as the metrics say it."""


def _took(one: dict[str, Any]) -> tuple[float, ...]:
    """How often, and in half and 99 of 100 cases at most how long."""
    return one["count"], *(one[p] or math.inf for p in ("p50", "p99"))


@dataclass
class Observed:
    """A flow that runs, and its metrics."""

    process: FlowProcess
    bootstrap: str
    prefix: str
    address: str

    def samples(self, name: str) -> list[tuple[dict[str, str], float]]:
        with urllib.request.urlopen(self.address, timeout=PATIENCE) as answer:
            text = answer.read().decode()
        return [
            (sample.labels, sample.value)
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == f"meander_{name}"
        ]

    def total(self, name: str, **labels: str) -> float:
        """Of all samples that have these labels."""
        found = self.samples(name)
        return sum(value for of, value in found if labels.items() <= of.items())

    def queues(self) -> Shown:
        """Bytes by worker and peer."""
        found = self.samples("link_queued_bytes")
        return {(of["worker"], of["to"]): (value,) for of, value in found}

    def partitions(self) -> Shown:
        """Seconds since 1970 by source, partition and worker."""
        found = self.samples("source_frontier_seconds")
        return {(of["source"], of["partition"], of["worker"]): (value,) for of, value in found}

    def latencies(self) -> Shown:
        """How often, and in half and 99 of 100 cases at most how long."""
        return self._took("delivery", "delivery_seconds", "source")

    def throughput(self) -> Shown:
        """The same of operators, of which some may have taken no records."""
        return self._took("operator", "operator_seconds", "operator")

    def _took(self, what: str, metric: str, label: str) -> Shown:
        counts, buckets = Counter[str](), Counter[tuple[str, float]]()
        for of, value in self.samples(f"{metric}_count"):
            counts[of[label]] += int(value)
        for of, value in self.samples(f"{metric}_bucket"):
            buckets[of[label], float(of["le"])] += int(value)

        def within(name: str, share: float) -> float:
            reached = (le for (of, le), n in buckets.items() if of == name)
            within = (le for le in reached if buckets[name, le] >= share * counts[name] > 0)
            return min(within, default=math.inf)

        return {
            (what, name): (count, within(name, 0.5), within(name, 0.99))
            for name, count in counts.items()
        }

    def status(self, part: str) -> Shown:
        """The same, as the status shows it."""
        (status,) = self.call("status", "counts", "--json")
        found = status[part]
        assert isinstance(found, list)
        return dict(map(SHOWN[part], found))

    def call(self, *words: str) -> list[dict[str, object]]:
        done = subprocess.run(
            [MEANDER, *words, "--prefix", self.prefix],
            env=os.environ | {"MEANDER_BOOTSTRAP": self.bootstrap},
            timeout=PATIENCE, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]


@contextmanager
def observed(broker: Broker, prefix: str, folder: Path, module: Path) -> Iterator[Observed]:
    words = run_command(module, prefix, 30, "--startup-timeout", str(PATIENCE))
    with meander(folder, broker.bootstrap, *words) as process:
        process.until_event("started")
        at = re.search(r"metrics_served address=(http://127\.0\.0\.1:\d+/metrics)", process.said)
        assert at is not None, process.said
        yield Observed(process, broker.bootstrap, prefix, at[1])


@pytest.fixture(scope="module")
def counts(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Observed]:
    prefix, folder = f"t{uuid4().hex[:10]}.", tmp_path_factory.mktemp("observed")
    lines(broker.bootstrap, prefix, TEXTS)
    module = flow_folder(folder / "flow", prefix)
    module.write_text(module.read_text() + AGAIN)
    with observed(broker, prefix, folder, module) as flow:
        until(lambda: flow.total("records_written_total") == 2 * len(TEXTS), "all is written")
        yield flow


def test_counters_equal_the_records_produced(counts: Observed) -> None:
    assert counts.total("records_read_total") == len(TEXTS)
    assert counts.total("operator_records_in_total", operator="count") == 2 * len(TEXTS)
    assert counts.total("operator_records_in_total", operator="sink") == 2 * len(TEXTS)
    assert counts.total("dead_letters_total") == counts.total("late_adjusted_total") == 0
    labels = [labels for labels, _ in counts.samples("records_read_total")]
    assert labels == [{"flow": "counts", "worker": "0"}, {"flow": "counts", "worker": "1"}]


def test_at_the_end_nothing_is_behind(counts: Observed) -> None:
    def passed() -> bool:
        lags = counts.samples("lag_records")
        return len(lags) == 4 and all(value == 0 for _, value in lags)

    until(passed, "the lag of each partition is 0")
    until(lambda: counts.total("inflight_bytes") == 0, "nothing is in flight")
    partitions = {labels["partition"] for labels, _ in counts.samples("source_frontier_seconds")}
    assert partitions == {"0", "1", "2", "3"}
    last = (1_700_000_000_000 + len(TEXTS) - 1) / 1000
    assert counts.total("frontier_seconds", probe="sink") >= last


def test_operators_and_deliveries_are_timed(counts: Observed) -> None:
    for name in ("count", "sink"):
        taken = counts.total("operator_records_in_total", operator=name)
        assert counts.total("operator_seconds_count", operator=name) == taken, "each record counts"
        assert counts.total("operator_seconds_sum", operator=name) > 0
        assert counts.total("operator_busy_seconds_total", operator=name) > 0
    assert counts.total("delivery_seconds_count", source="source") > 0
    for time in ("cpu", "active"):
        assert counts.total(f"worker_{time}_seconds_total") > 0


def test_a_migration_is_counted_and_bins_change_hands(counts: Observed) -> None:
    before = counts.total("bins", worker="1")
    counts.call("migrate", "counts", "--bins", "0-9", "--worker", "1")
    until(lambda: counts.total("migrations_completed_total") == 1, "it is counted")
    until(lambda: counts.total("bins", worker="1") == before + 10, "the bins are there")
    assert counts.total("bins_moved_total") == 10
    until(lambda: counts.total("migrations") == 0, "none is under way")

    def said() -> bool:
        (status,) = counts.call("status", "counts", "--json")
        return (status["migrations_completed"], status["bins_moved"]) == (1, 10)

    until(said, "the status says so, too")


def test_a_checkpoint_has_an_age_a_duration_and_bytes(counts: Observed) -> None:
    assert not counts.samples("checkpoint_age_seconds"), "there is none"
    counts.call("checkpoint", "counts")
    until(lambda: counts.total("checkpoints_total") == 1, "it is counted")
    assert counts.total("checkpoint_age_seconds", flow="counts") >= 0
    assert counts.total("checkpoint_seconds") > 0
    assert counts.total("checkpoint_state_bytes") > 0
    assert len(counts.samples("checkpoint_in_flight_bytes")) == 1


def test_probes_answer_beside_the_metrics(counts: Observed) -> None:
    for probe, text in ("healthz", "the driver attends to its flow"), ("readyz", "all workers run"):
        with urllib.request.urlopen(counts.address.replace("metrics", probe)) as answer:
            assert answer.read().decode() == text + "\n"


def test_status_shows_the_same(counts: Observed) -> None:
    (status,) = counts.call("status", "counts", "--json")
    assert status["metrics"] == counts.address
    lags, throughput, held = status["lags"], status["throughput"], status["frontier_blockers"]
    assert isinstance(lags, list)
    assert isinstance(throughput, list)
    assert isinstance(held, list)
    assert {one["partition"] for one in lags} == {0, 1, 2, 3}
    assert {"source", "count", "lengths", "sink"} <= {one["operator"] for one in throughput}
    assert [one["probe"] for one in held] == ["sink"]
    # A beat may come between the two looks.
    until(lambda: counts.status("queues") == counts.queues(), "the bytes on each link are the same")
    until(lambda: counts.status("partitions") == counts.partitions(), "so are the frontiers")
    until(lambda: counts.status("latencies") == counts.latencies(), "so is what took how long")
    assert set(counts.queues()) == {("0", "1"), ("1", "0")}
    assert {partition for _, partition, _ in counts.partitions()} == {"0", "1", "2", "3"}
    until(lambda: counts.status("throughput") == counts.throughput(), "of operators, too")
    assert ("delivery", "source") in counts.latencies()
    assert counts.throughput()["operator", "count"][0] == 2 * len(TEXTS)


def test_a_partition_that_holds_back_the_others_is_named(
    broker: Broker, prefix: str, tmp_path: Path
) -> None:
    for topic in ("lines", "counts"):
        create_topic(broker.bootstrap, prefix + topic, 4)
    records = [
        Record(text.encode(), partition=i % SILENT, timestamp=1_700_000_000_000 + i)
        for i, text in enumerate(TEXTS)
    ]
    produce(broker.bootstrap, prefix + "lines", records)
    module = tmp_path / "held.py"
    module.write_text(HELD.format(prefix=prefix))

    with observed(broker, prefix, tmp_path, module) as flow:

        def holding() -> bool:
            found = [labels for labels, value in flow.samples("frontier_held_seconds") if value > 1]
            named = [
                (one["probe"], one["kind"], one["name"], one["partition"], one["awaited"])
                for one in found
            ]
            return named == [("sink", "source", "lines", str(SILENT), "yes")]

        until(lambda: flow.total("records_read_total") > 0, "records are read")
        until(holding, "the partition is named")
        (status,) = flow.call("status", "held", "--json")
        assert isinstance(status["frontier_blockers"], list)
        (held,) = status["frontier_blockers"]
        assert (held["partition"], held["awaited"]) == (SILENT, True)
        assert f"partition {SILENT} of source 'lines'" in held["by"]
        assert held["by"].endswith("it has been read to its end")

        waits = (
            f"for=frontier probe=sink held_by=\"partition {SILENT} of source 'lines'",
            "for=in_flight_room",
        )
        until(lambda: all(wait in flow.process.said for wait in waits), "the log says so")
        (line,) = [line for line in flow.process.said.splitlines() if waits[0] in line]
        assert "waiting " in line
        assert 'until="records come there' in line
