"""Each join gives what the cases of `docs/reference/joins.md` say."""

from __future__ import annotations

import pytest

from tests.support.join_cases import JoinCase, expected, join_cases, run_case

CASES = [*join_cases()]


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize(("seed", "workers"), [(0, 1), (1, 2), (2, 3)])
def test_a_join_gives_what_its_case_says(case: JoinCase, seed: int, workers: int) -> None:
    """I3: on any number of workers, in any schedule and order of definition."""
    assert run_case(case, seed, workers) == expected(case)


def test_the_page_has_cases_of_each_kind_of_join() -> None:
    assert len(CASES) > 15
    assert all(case.inputs and case.results for case in CASES)
