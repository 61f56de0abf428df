"""I3: the same logs and decisions give the same results, byte for byte and in the same order, over
three exchanges with flat_map, timers and a binary operator, whatever else differs."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from meander.dataflow.control.timestamp_overrides import (
    OverrideHistory,
    PartitionOverrides,
    TimestampOverride,
)
from meander.dataflow.operators.buffer.rows import Rows
from meander.dataflow.operators.source.operator import SourceOperator
from meander.dataflow.progress.progress import Progress
from tests.support.property.budget import FIRST_SEED, REPLAYS, SCHEDULES, seeds
from tests.support.property.planted import plant
from tests.support.property.replay import (
    FOREVER,
    SPAN,
    Logs,
    Mark,
    Run,
    ascending_logs,
    checksum,
    random_logs,
    random_variant,
    watched,
)

ROOT = Path(__file__).parents[2]
FLOOR, VARIANTS, BOUNDED = 4, 3, 2
PLANTED_RUNS = 40
HASHED = 3
"""Logs that are replayed where strings hash otherwise."""
INFLIGHT, CHUNK = 300, 800
"""Bytes that may be in flight, and the most in a chunk."""


def begun(seed: int, rng: random.Random) -> tuple[Logs, bool, Run]:
    """The logs of all that is read, whether the last partition came meanwhile, and the run."""
    (one, two), comes = random_logs(seed), rng.random() < 0.5
    if not comes:
        return (one, two), False, watched((one, two), random_variant(rng), OverrideHistory())
    first = watched((one, two[:-1]), random_variant(rng), OverrideHistory(), two[-1])
    came = knows(first.rulings, len(two) - 1)
    return (one, two if came else two[:-1]), came, first


def knows(rulings: Iterable[TimestampOverride], partition: int) -> bool:
    """Whether a partition of the second source is among them: else it is still to come."""
    return any(ruling.origin == 1 and ruling.partition == partition for ruling in rulings)


def continued(logs: Logs, came: bool, rng: random.Random, past: Mark) -> Run:
    """A run from a mark on; a partition that comes later comes again, in its own time."""
    (one, two), variant = logs, random_variant(rng)
    if came and not knows(past.heard, len(two) - 1):
        return watched((one, two[:-1]), variant, OverrideHistory(past.time, past.heard), two[-1])
    return watched(logs, variant, OverrideHistory(past.time, past.heard))


def replayed(seed: int) -> tuple[Run, list[Run]]:
    """A run, and replays of the whole of it."""
    rng = random.Random(seed)
    logs, _, first = begun(seed, rng)
    past = OverrideHistory(FOREVER, first.rulings)
    again = [watched(logs, random_variant(rng), past) for _ in range(VARIANTS)]
    for run in again:
        assert run.decided == first.decided, f"seed {seed}: the sources decide otherwise"
        assert checksum(run.results) == checksum(first.results), f"seed {seed}: other results"
        assert not run.rulings, f"seed {seed}: a replay rules nothing before the mark"
    return first, again


def broken_off(seed: int) -> int:
    """A run that ends at a mark, a second that goes on from there and ends as well, and a third.
    How many rulings the second has added."""
    rng = random.Random(f"broken off {seed}")
    logs, came, first = begun(seed, rng)
    if not first.marks:
        return 0
    mark = rng.choice(first.marks)
    second = continued(logs, came, rng, mark)
    at = f"seed {seed}, mark {mark.time}"
    assert second.before(mark.time) == first.before(mark.time), f"{at}: what was out is otherwise"
    if not second.marks:
        return 0
    later = rng.choice(second.marks)
    end = max(mark.time, later.time)
    third = continued(logs, came, rng, Mark(end, mark.heard + later.heard))
    at = f"seed {seed}, marks {mark.time} and {later.time}"
    assert third.before(end) == second.before(end), f"{at}: what was out is otherwise"
    return len(later.heard)


def bounded(seed: int) -> None:
    """I6: where no ruling has several records be of one time, a replay needs no more room than any
    run: twice the bound, and a chunk of each partition."""
    logs, variant = ascending_logs(seed), random_variant(random.Random(f"bounded {seed}"))
    run = watched(logs, replace(variant, max_inflight=INFLIGHT), OverrideHistory(FOREVER))
    most = 2 * INFLIGHT + CHUNK * sum(map(len, logs))
    assert run.inflight <= most, f"seed {seed}: {run.inflight} bytes were in flight (I6)"


def test_a_replay_has_no_more_in_flight_than_any_run() -> None:
    for seed in range(FIRST_SEED, FIRST_SEED + BOUNDED):
        bounded(seed)


@pytest.mark.soak
def test_a_replay_gives_the_same_results_in_the_same_order(
    record_property: Callable[[str, object], None],
) -> None:
    runs = results = bumps = future = advances = added = 0
    for seed in seeds(REPLAYS, FLOOR):
        first, again = replayed(seed)
        runs += len(again) + 2
        results += len(first.results)
        bumps += first.late_adjusted
        future += first.future_ignored
        advances += first.clock_advances
        added += broken_off(seed)
    record_property(f"{SCHEDULES}replays with equal checksums", runs)
    record_property("results of the runs that were replayed", results)
    record_property("records that these had moved to a later time", bumps)
    record_property("records of the future in these", future)
    record_property("advances by the clock in these", advances)
    record_property("rulings made after a mark, and followed by a third run", added)


def test_left_to_themselves_sources_decide_otherwise() -> None:
    """Or the replays would prove nothing."""
    otherwise = bumps = future = 0
    for seed in range(10):
        logs, rng = random_logs(seed), random.Random(seed)
        one, two = (watched(logs, random_variant(rng), OverrideHistory()) for _ in range(2))
        otherwise += one.decided != two.decided
        bumps += one.late_adjusted
        future += one.future_ignored
    assert otherwise > 5
    assert bumps
    assert future


_told = Progress.flush


def _late(progress: Progress) -> bool:
    """A ruling is told one update after what it makes effective."""
    rulings, progress.overrides = progress.overrides, getattr(progress, "late", [])
    setattr(progress, "late", rulings)  # noqa: B010
    return _told(progress)


_choose = SourceOperator._pause_and_resume


def _boundless(source: Any) -> None:
    """What replays is read however much is in flight."""
    _choose(source)
    for partition in source._partitions.values():
        if partition.replaying and partition.paused:
            partition.paused = False
            source._reader.resume(partition.number)


def _roomless(source: Any) -> None:
    """What replays has to stop where any other would, though nothing may move it on."""
    _choose(source)
    for partition in source._partitions.values():
        if source._inflight.overfull and not partition.paused:
            partition.paused = True
            source._reader.pause(partition.number)


PLANTED: dict[str, tuple[type, str, Callable[..., Any], str]] = {
    "moves are not told": (SourceOperator, "_override", SourceOperator._advance, "moved unheard"),
    "records of the future are not told": (
        SourceOperator, "_override_future", lambda *_: None, "decide otherwise|is otherwise"
    ),
    "moves are not followed": (
        PartitionOverrides, "floors", lambda self, offsets: offsets * 0,
        "decide otherwise|is otherwise",
    ),
    "rulings are told after what they make effective": (
        Progress, "flush", _late, "moved unheard|decide otherwise"
    ),
    "a replay reads without a bound": (
        SourceOperator, "_pause_and_resume", _boundless, "I6"
    ),
    "a replay has no more room than any run": (
        SourceOperator, "_pause_and_resume", _roomless, "I7"
    ),
}  # fmt: skip
"""And what is said of it."""


@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_is_caught(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, method, planted, said = PLANTED[bug]
    plant(monkeypatch, owner, method, planted)

    def runs() -> None:
        for seed in range(PLANTED_RUNS):
            replayed(seed)
            broken_off(seed)
            bounded(seed)

    with pytest.raises(AssertionError, match=said):
        runs()


def test_nor_does_the_hash_of_strings_matter() -> None:
    runs = {seed: _in_the_past(seed) for seed in range(FIRST_SEED, FIRST_SEED + HASHED)}
    assert sum(run.late_adjusted for run in runs.values()) and sum(
        run.future_ignored for run in runs.values()
    )
    given = json.dumps([(seed, run.rulings) for seed, run in runs.items()])
    expected = [checksum(run.decided + run.results) for run in runs.values()]
    hashes = set()
    for hash_seed in ("0", "1", "4711", "random"):
        hashed, *found = _in_a_process_of_its_own(hash_seed, given)
        hashes.add(hashed)
        assert found == expected, f"PYTHONHASHSEED={hash_seed}"
    assert len(hashes) == 4, "they did differ"


def _in_the_past(seed: int) -> Run:
    """Where the clock stood so early that records were of the future."""
    rng = random.Random(f"in the past {seed}")
    variant = replace(random_variant(rng), now_ms=rng.randrange(SPAN // 3))
    return watched(random_logs(seed), variant, OverrideHistory())


def _in_a_process_of_its_own(hash_seed: str, given: str) -> list[str]:
    ran = subprocess.run(
        [sys.executable, "-m", "tests.support.property.replay"], input=given,
        cwd=ROOT, env=os.environ | {"PYTHONHASHSEED": hash_seed},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return ran.stdout.split()


def _by_time_alone(rows: Rows, inputs_first: bool = False) -> Rows:
    """Records of one time stay as they came. A queue that is out of time would never empty."""
    return rows.take(np.argsort(rows.batch.times, kind="stable"))


def test_records_that_apply_as_they_come_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, Rows, "sorted", _by_time_alone)
    logs, rng, past = random_logs(1), random.Random(0), OverrideHistory(FOREVER)
    found = {checksum(watched(logs, random_variant(rng), past).results) for _ in range(6)}
    assert len(found) > 1
