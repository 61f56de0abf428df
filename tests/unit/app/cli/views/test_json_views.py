"""The lines of commands where no terminal reads: JSON objects for programs."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from io import StringIO

import pytest
from rich.console import Console

from meander.app.cli.views.migrate import show, show_plan
from meander.app.cli.views.rescale import show_rescale
from meander.app.cli.views.summary import EVERY
from meander.app.common.output import CommandOutput
from meander.app.status.overview import SILENCE
from meander.schemas.status import (
    Accepted,
    BinMoved,
    CommandRejected,
    Completed,
    Event,
    Planned,
    Rescaled,
)

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


def test_a_dry_run_shows_ranges_of_bins_within_80_characters() -> None:
    console = Console(file=StringIO(), width=80)
    moves = [(bin // 16, bin, bin % 2, 2, 5_000) for bin in range(256)]
    planned = Planned(id="m", offset=0, moves=moves, rounds=16, estimate=None, last=True)
    assert show_plan(CommandOutput(console, as_json=False), iter([planned])) == 0
    moves = [(0, bin, 0, 1, 5_000) for bin in range(256)]
    planned = Planned(id="m", offset=0, moves=moves, rounds=1, estimate=None, last=True)
    assert isinstance(console.file, StringIO)
    scattered = console.file.getvalue()
    assert max(map(len, scattered.splitlines())) <= 80
    assert show_plan(CommandOutput(console, as_json=False), iter([planned])) == 0
    joined = console.file.getvalue().removeprefix(scattered)
    assert ["0", "1", "0-255", "0", "1.3", "MB"] in [line.split() for line in joined.splitlines()]


def test_a_rejected_dry_run_prints_the_reason(capsys: pytest.CaptureFixture[str]) -> None:
    rejected = CommandRejected(id="m", offset=0, reason="there is no bin 9")
    assert show_plan(JSON, iter([rejected])) == 1
    (line,) = printed(capsys)
    assert line["reason"] == "there is no bin 9"


@pytest.mark.parametrize(
    ("view", "end"),
    [
        (show, Completed(id="m", ms=1, bins=256, bytes=512)),
        (show_rescale, Rescaled(id="m", workers=3, ms=1)),
    ],
)
def test_a_summary_every_ten_seconds_replaces_the_events_of_single_bins(
    view: Callable[[CommandOutput, Iterator[Event]], int], end: Event,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)

    def events() -> Iterator[Event]:
        nonlocal now
        yield Accepted(
            id="m", offset=0, time=None, at=None, strategy="fluid", bins=list(range(256))
        )
        for bin in range(256):
            if bin % 20 == 19:
                now += EVERY / 4
                yield SILENCE
            yield BinMoved("m", bin, 0, 1, at=5, bytes=2, keys=1, ms=1)
        yield end

    assert view(JSON, events()) == 0
    lines = printed(capsys)
    assert [line["type"] for line in lines] == ["accepted", *["summary"] * 3, end.type]
    assert lines[1] == {
        "type": "summary", "bins": 256, "moved": 79, "bytes": 158, "rescale": None
    }  # fmt: skip
