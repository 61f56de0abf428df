"""The lines of commands where no terminal reads: JSON objects for programs."""

from __future__ import annotations

import json

import pytest
from rich.console import Console

from meander.app.cli.views.migrate import show_plan
from meander.app.common.output import CommandOutput
from meander.schemas.status import CommandRejected, Planned

JSON = CommandOutput(Console(), as_json=True)


def printed(capsys: pytest.CaptureFixture[str]) -> list[dict[str, object]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_a_dry_run_prints_numbers_and_its_estimate(capsys: pytest.CaptureFixture[str]) -> None:
    parts = [
        Planned(id="m", offset=0, moves=[move], rounds=2, estimate=1.5, last=last)
        for move, last in (((0, 7, 1, 0, 162), False), ((1, 9, 1, 0, 0), True))
    ]
    assert show_plan(JSON, iter(parts)) == 0
    assert printed(capsys) == [
        {"type": "move", "round": 0, "bin": 7, "from": 1, "to": 0, "bytes": 162},
        {"type": "move", "round": 1, "bin": 9, "from": 1, "to": 0, "bytes": 0},
        {"type": "plan", "id": "m", "rounds": 2, "bins": 2, "bytes": 162, "estimate_s": 1.5},
    ]


def test_a_rejected_dry_run_prints_the_reason(capsys: pytest.CaptureFixture[str]) -> None:
    rejected = CommandRejected(id="m", offset=0, reason="there is no bin 9")
    assert show_plan(JSON, iter([rejected])) == 1
    (line,) = printed(capsys)
    assert line["reason"] == "there is no bin 9"
