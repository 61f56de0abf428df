"""What a random run takes for right: each key's results one by one, and repeats of a suffix where
delivery is at least once."""

from __future__ import annotations

from itertools import islice

import pytest

from meander.dataflow.api.nodes import Guarantee
from tests.support.random_run.results import Place, Sequences
from tests.support.random_run.strikes import SHARES, strikes


@pytest.mark.parametrize(
    ("counts", "once", "at_least_once"),
    [
        ([1, 2, 3], True, True),
        ([2, 3], False, False),
        ([1, 3], False, False),
        ([1, 2, 2, 3], False, True),
        ([1, 2, 3, 1, 2, 3, 4], False, True),
        ([1, 2, 3, 2, 4], False, False),
        ([1, 2, 3, 0], False, False),
    ],
)
def test_what_is_a_sequence(counts: list[int], once: bool, at_least_once: bool) -> None:
    expected: dict[Guarantee, bool] = {"exactly_once": once, "at_least_once": at_least_once}
    for delivery, right in expected.items():
        sequences = Sequences(delivery)
        for offset, count in enumerate(counts):
            # Of another key, which has nothing to do with it.
            sequences.see(Place("counts", 0, 2 * offset), "other", {"count": offset + 1})
            sequences.see(Place("counts", 0, 2 * offset + 1), "key", {"count": count})
        assert (not sequences.wrong) is right
        assert {wrong.key for wrong in sequences.wrong} <= {"key"}


def test_a_result_of_another_record_is_wrong() -> None:
    sequences = Sequences("exactly_once")
    sequences.see(Place("counts", 0, 0), "key", {"count": 1, "fed": 2})
    assert [wrong.why for wrong in sequences.wrong] == ["1 is the fed 2"]


def test_what_is_not_out_yet_is_missing() -> None:
    sequences = Sequences("exactly_once")
    sequences.see(Place("counts", 0, 0), "a", {"count": 1})
    assert sequences.missing("counts", {"a": 1, "b": 1}) == ["b"]
    assert sequences.missing("counts", {"a": 2}) == ["a"]


def test_a_long_run_has_strikes_of_every_kind() -> None:
    drawn = {type(planned.strike) for planned in islice(strikes(0), 1_000)}
    assert drawn == {*SHARES}
