"""Ranges give back the numbers that they were made of, and refuse all else."""

from __future__ import annotations

import random

import pytest

from meander.dataflow.execution_plan.bin_ranges import numbers, ranges


@pytest.mark.parametrize("seed", range(50))
def test_numbers_come_back_from_their_ranges(seed: int) -> None:
    rng = random.Random(seed)
    some = rng.sample(range(300), rng.randint(0, 300))
    assert [*numbers(ranges(some), 300)] == sorted(some)


@pytest.mark.parametrize(
    ("some", "text"),
    [((), ""), ((4,), "4"), ((3, 3, 3), "3"), ((2, 1), "1-2"), ((0, 2, 3, 4, 9), "0, 2-4, 9")],
)
def test_ranges_name_each_number_once_in_order(some: tuple[int, ...], text: str) -> None:
    assert ranges(some) == text


@pytest.mark.parametrize(
    ("text", "found"), [(" 1 -3 ,,5", [1, 2, 3, 5]), ("7-7", [7]), ("1,1", [1, 1]), ("  ", [])]
)
def test_spaces_and_empty_parts_say_nothing(text: str, found: list[int]) -> None:
    assert [*numbers(text, 8)] == found


@pytest.mark.parametrize("text", ["a", "-1", "1-", "-", "1-2-3", "1.5", "0x1", "1 2", "²", "+1"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="neither a number nor a range"):
        [*numbers(text, 8)]


@pytest.mark.parametrize("text", ["8", "0-8", "8-9", "0, 99999999999999999999"])
def test_numbers_beyond_the_last_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="names numbers beyond 7"):
        [*numbers(text, 8)]


def test_a_range_that_ends_before_it_begins_is_refused() -> None:
    with pytest.raises(ValueError, match="'5-3' is no range"):
        [*numbers("5-3", 8)]
