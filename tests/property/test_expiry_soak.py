"""Keys that come and go for long leave memory, disk and the state topic as they were.

A key that expires is never read again, so nothing but a sweep can remove it.
"""

from __future__ import annotations

import resource
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from meander import Checkpointing, Flow, KafkaSink, KafkaSource
from meander.state.store.store import Databases
from meander.testing import TestFlow
from tests.support.property.budget import LONG

KEYS = 10_000_000 if LONG else 200_000
TTL, RATE = 1.0, 4_000
"""Seconds that a key lives, and the new keys per second."""
LIVE = int(TTL * RATE)
ROUND = 5_000
"""The keys that come between two samples."""
PAGE = resource.getpagesize()


@dataclass(frozen=True)
class Sample:
    """What a flow keeps at a moment."""

    entries: int
    topic_bytes: int
    disk_bytes: int
    memory_bytes: int
    """Those of the process."""


def record_ms(number: Any) -> int:
    return int(number) * 1000 // RATE


def sample(run: TestFlow, folder: Path) -> Sample:
    return Sample(
        sum(len(states) for worker in run.workers for states in worker.state().values()),
        sum(len(data) for _, data in run.world.state._records if data is not None),
        sum(file.stat().st_size for file in folder.rglob("*.sst")),
        int(Path("/proc/self/statm").read_text("ascii").split()[1]) * PAGE,
    )


def drop_read(run: TestFlow, topic: str) -> None:
    """Release the records of a topic, which a simulated topic retains."""
    kept = run._topics.topic(topic)
    kept.records.clear()
    for log in kept.logs:
        log[:] = [None] * len(log)  # type: ignore[list-item]


@pytest.fixture(autouse=True)
def small_chunks() -> None:
    """Let chunks and bundles be as large as in a real flow."""


@pytest.mark.soak
@pytest.mark.timeout(14400 if LONG else 300)
def test_keys_that_come_and_go_leave_memory_disk_and_topic_flat(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    flow = Flow("soak", bins=3, snapshot_interval=0.02, checkpoints=Checkpointing(interval=0.1))
    numbers = flow.source(KafkaSource("in", time=record_ms))
    seen = numbers.key_by(lambda n: n).fold("seen", int, lambda n, _: (n + 1, n), ttl=TTL)
    seen.filter(lambda count: count > 0).sink(KafkaSink("again"))
    databases, samples = Databases(tmp_path, 2 << 20), list[Sample]()
    with TestFlow(flow, workers=2, databases=databases) as run:
        for first in range(0, KEYS, ROUND):
            run.feed("in", *range(first, first + ROUND))
            run.advance(0.1)
            samples.append(sample(run, tmp_path))
            drop_read(run, "in")
        assert run.values("again") == [], "no key comes twice"
        sizes = [worker.state_sizes()["seen"] for worker in run.workers]
    databases.close()
    record_property("keys that came and went", KEYS)
    # The first samples come before the first checkpoints have been dropped.
    early, late = samples[4 : len(samples) // 2], samples[len(samples) // 2 :]
    assert max(one.entries for one in late) <= 2 * LIVE, "expired keys leave the store"
    for what in ("topic_bytes", "disk_bytes", "memory_bytes"):
        before, after = (max(getattr(one, what) for one in some) for some in (early, late))
        record_property(f"{what} at most", after)
        assert after <= 1.5 * before, f"{what} stay flat"
    assert sum(one.keys for one in sizes) == samples[-1].entries, "keys are counted"
    assert sum(one.forgotten for one in sizes) == KEYS - samples[-1].entries
