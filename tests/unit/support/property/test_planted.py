"""What the search for a run that shows a planted bug says of the seeds."""

from __future__ import annotations

import warnings

import pytest

from tests.support.property import planted
from tests.support.property.planted import expect_caught, runs


class Engine:
    wrong = False


def _expect(monkeypatch: pytest.MonkeyPatch, shown: int, first: int) -> list[int]:
    """Search for the bug, which runs from a first seed on show; return the seeds of the runs."""
    tried = list[int]()

    def recover(seed: int) -> None:
        tried.append(seed)
        assert not (Engine.wrong and seed >= first)

    expect_caught(monkeypatch, (Engine, "wrong", True), recover, runs(shown, 6))
    return tried


def test_a_seed_that_shows_a_bug_is_the_only_one_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert _expect(monkeypatch, 4, 4) == [4, 4], "with the bug, and without it"


def test_a_stale_seed_is_named_with_the_one_to_try_first(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.warns(UserWarning, match="try seed 5 first, not 3"):
        assert _expect(monkeypatch, 3, 5) == [3, 4, 5, 5]


def test_all_seeds_are_tried_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planted, "ALL_SEEDS", True)
    costs = iter([0, 9, 10, 12, *range(20, 24)])
    monkeypatch.setattr(planted, "process_time", lambda: next(costs))
    with pytest.warns(UserWarning, match="try seed 5 first, not 4: 2.0 s"):
        assert _expect(monkeypatch, 4, 4) == [4, 4, 5, 5, 0, 1, 2, 3]


def test_a_bug_that_no_run_shows_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AssertionError, match="no run has caught the bug"):
        _expect(monkeypatch, 0, 99)
