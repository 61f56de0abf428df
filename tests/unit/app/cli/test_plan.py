"""`meander plan` writes a command that a flow takes, with who asks for it and why."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from meander.app.cli import plan
from meander.app.cli.main import app
from meander.schemas.control import ApplyPlan, parse_command

Meander = Callable[..., tuple[Result, list[ApplyPlan]]]


@pytest.fixture
def meander(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Meander:
    """Run `meander plan ...` where `plan.yaml` has three workers; return the commands that it
    writes."""
    written = list[ApplyPlan]()

    def submit(command: ApplyPlan, *_: Any, **__: Any) -> None:
        written.append(command)

    monkeypatch.setattr(plan, "submit", submit)
    monkeypatch.chdir(tmp_path)
    Path("plan.yaml").write_text("workers: {0: {}, 1: {}, 2: {}}")

    def run(*words: str) -> tuple[Result, list[ApplyPlan]]:
        return CliRunner().invoke(app, ["plan", *words]), written

    return run


def as_parsed(command: ApplyPlan) -> ApplyPlan:
    """Return a command as a flow reads it."""
    parsed = parse_command(command.model_dump_json().encode(), 4)
    assert isinstance(parsed, ApplyPlan)
    return parsed


@pytest.mark.parametrize("words", [["show", "alerts"], ["diff", "alerts", "plan.yaml"]])
def test_show_and_diff_ask_for_a_dry_run(words: list[str], meander: Meander) -> None:
    result, (written,) = meander(*words)
    assert result.exit_code == 0
    assert as_parsed(written).dry_run
    assert bool(written.plan.sections) == (words[0] == "diff")


def test_apply_says_what_its_words_say(meander: Meander) -> None:
    words = ["--why", "load", "--time", "7000", "--seconds", "2.5", "--id", "p1"]
    result, (written,) = meander("apply", "alerts", "plan.yaml", *words)
    parsed = as_parsed(written)
    assert result.exit_code == 0
    assert (parsed.id, parsed.why, parsed.time, parsed.seconds) == ("p1", "load", 7_000, 2.5)
    assert parsed.plan.sections == {"workers": {"0": {}, "1": {}, "2": {}}}
    assert parsed.by == plan._user()
    assert not parsed.dry_run


def test_apply_without_options_leaves_time_and_limit_to_the_flow(meander: Meander) -> None:
    _, (written,) = meander("apply", "alerts", "plan.yaml")
    parsed = as_parsed(written)
    assert (parsed.time, parsed.seconds, parsed.why) == (None, None, "")


def test_a_limit_of_no_time_is_refused(meander: Meander) -> None:
    result, written = meander("apply", "alerts", "plan.yaml", "--seconds", "0")
    assert (result.exit_code, written) == (2, [])


@pytest.mark.parametrize("words", [["diff"], ["apply"]])
def test_a_file_that_is_no_plan_writes_no_command(words: list[str], meander: Meander) -> None:
    result, written = meander(*words, "alerts", "other.yaml")
    assert (result.exit_code, written) == (2, [])
    assert "it cannot be read" in result.output


def test_a_user_without_a_name_is_known_by_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("getpass.getuser", lambda: "ann")
    monkeypatch.setattr("socket.gethostname", lambda: "here")
    assert plan._user() == "ann@here"

    def unknown() -> str:
        raise KeyError("uid")

    monkeypatch.setattr("getpass.getuser", unknown)
    assert plan._user() == "here"
