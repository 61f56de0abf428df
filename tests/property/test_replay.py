"""I3: the same logs and decisions give the same results, byte for byte and in the same order, over
three exchanges with flat_map, timers and a binary operator, whatever else differs."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dataflow.operators.rows import Rows
from tests.property.budget import FIRST_SEED, REPLAYS, SCHEDULES, seeds
from tests.property.replay import PLAIN, checksum, random_logs, random_variant, results

ROOT = Path(__file__).parents[2]
FLOOR, VARIANTS = 8, 4


@pytest.mark.soak
def test_a_replay_gives_the_same_results_in_the_same_order(
    record_property: Callable[[str, object], None],
) -> None:
    runs = records = 0
    for seed in seeds(REPLAYS, FLOOR):
        logs, rng = random_logs(seed), random.Random(seed)
        decided, expected = results(logs, PLAIN)
        for _ in range(VARIANTS):
            variant = random_variant(rng)
            times, found = results(logs, variant)
            assert times == decided, f"seed {seed}: other decisions in {variant}"
            assert checksum(found) == checksum(expected), f"seed {seed}: otherwise in {variant}"
            runs += 1
        records += len(expected)
    record_property(f"{SCHEDULES}replays with equal checksums", runs)
    record_property("results of each replay", records)


def test_nor_does_the_hash_of_strings_matter() -> None:
    _, expected = results(random_logs(FIRST_SEED), PLAIN)
    said = [_in_a_process_of_its_own(hash_seed) for hash_seed in (0, 1, 4711)]
    assert {(count, found) for count, found, _ in said} == {
        (str(len(expected)), checksum(expected))
    }
    assert len({hashed for _, _, hashed in said}) == 3, "they did differ"


def _in_a_process_of_its_own(hash_seed: int) -> list[str]:
    ran = subprocess.run(
        [sys.executable, "-m", "tests.property.replay", str(FIRST_SEED)],
        cwd=ROOT, env=os.environ | {"PYTHONHASHSEED": str(hash_seed)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return ran.stdout.split()


def test_records_that_apply_as_they_come_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Rows, "sorted", lambda self: self)
    logs, rng = random_logs(1), random.Random(0)
    found = {checksum(results(logs, random_variant(rng))[1]) for _ in range(6)}
    assert len(found) > 1
