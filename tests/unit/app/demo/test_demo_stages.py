"""What the demo is busy with is shown as it passes on a terminal, and in whole lines elsewhere."""

from __future__ import annotations

from io import StringIO

from rich.console import Console

from meander.app.demo.report import Stages


def shown(*, terminal: bool) -> str:
    said = StringIO()
    console = Console(file=said, force_terminal=terminal, width=140, color_system=None)
    stages = Stages(console)
    with stages.stage("first", "starts something"):
        pass
    with stages.stage("second", "counts something", "things") as gauge:
        gauge.show(0, 2_000)
        gauge.show(1_500, 2_000, "still")
        gauge.bar.refresh()
    assert stages.seconds.keys() == {"first", "second"}
    return said.getvalue()


def test_a_terminal_shows_how_far_a_stage_is() -> None:
    text = shown(terminal=True)
    assert "1500/2000 things" in text
    assert "still" in text


def test_elsewhere_nothing_is_written_over() -> None:
    text = shown(terminal=False)
    assert "\r" not in text
    assert "\x1b" not in text
    lines = [line.strip() for line in text.splitlines()]
    assert [line[len("0.0 s  ") :] for line in lines[:2]] == [
        "starts something",
        "counts something",
    ]
    assert lines[2].startswith("1,500 things in ")
    assert len(lines) == 3
