"""What a failing random case says, and how long it is made shorter."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import nullcontext
from itertools import count
from pathlib import Path

import pytest

from meander.dataflow.simulation import simulator
from tests.support.property import shrinking
from tests.support.property.cases import Case, random_case, shortest

SUITE = """
import os
from tests.support.property.cases import checked, random_case
from tests.property.conftest import *

def test_family():
    tries = iter(range(9))

    def check(case):
        if next(tries):
            os._exit(3)  # as the watchdog of a test does, in the midst of what takes too long
        raise ValueError("not the reference's")

    checked(random_case(4711), check)
"""


def test_the_seed_is_printed_though_the_process_ends_while_a_case_is_made_shorter(
    tmp_path: Path,
) -> None:
    suite = tmp_path / "test_suite.py"
    suite.write_text(SUITE)
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(suite)],
        capture_output=True, text=True, cwd=Path.cwd(), env={**os.environ, "PYTHONPATH": "."},
    )  # fmt: skip
    assert ran.returncode == 3, ran.stdout + ran.stderr
    assert "MEANDER_SEED=4711 fails in" in ran.stderr
    assert "test_family" in ran.stderr
    assert "not the reference's" in ran.stderr


def test_a_case_is_made_shorter_as_long_as_there_is_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shrinking, "uncaptured", nullcontext)
    case, tried, moments = random_case(3), list[Case](), count(0.0, shrinking.SECONDS / 4)

    def fails(other: Case) -> bool:
        tried.append(other)
        assert simulator.MAX_ACTIONS <= 30_000, "what does not come to its end is given up soon"
        return True

    assert sum(map(len, case.partitions)) > 20
    found = shrinking.shrunk(case, shortest, fails, lambda: next(moments))
    assert len(tried) == 3
    assert found == tried[-1]
