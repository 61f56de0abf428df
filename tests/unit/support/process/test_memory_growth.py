"""What random rescales judge a process's memory by sees a leak, and nothing where there is none."""

from __future__ import annotations

import random

import pytest

from tests.support.process.memory_growth import FLAT, growth

MEASUREMENTS = 200
SEEDS = range(20)
NOISE = 0.05
"""By which any measurement may be off."""
WARM = 20
"""Measurements while the process has not all that it needs."""


def measured(seed: int, leak: float) -> list[float]:
    """A process that has a tenth less at first, and so much more in the end."""
    rng = random.Random(seed)
    return [
        (0.9 if n < WARM else 1.0)
        * (1 + leak * n / MEASUREMENTS)
        * rng.uniform(1 - NOISE, 1 + NOISE)
        for n in range(MEASUREMENTS)
    ]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_leak_of_thirty_percent_is_seen(seed: int) -> None:
    assert growth(measured(seed, leak=0.3)) > FLAT


@pytest.mark.parametrize("seed", SEEDS)
def test_a_process_that_warms_up_and_goes_on_as_it_is_leaks_nothing(seed: int) -> None:
    assert growth(measured(seed, leak=0.0)) < FLAT
