"""`meander change` writes a command that a flow takes, or says in a sentence how it is written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from meander.app.cli import change
from meander.app.cli.change import parse_parameters, sentence
from meander.app.cli.main import app
from meander.schemas.control import ChangeLogic, parse_command
from meander.schemas.errors import SetupError
from meander.schemas.status import CommandRejected, LogicAccepted, LogicChanged

Meander = Callable[..., tuple[Result, list[ChangeLogic]]]


@pytest.fixture
def meander(monkeypatch: pytest.MonkeyPatch) -> Meander:
    """Run `meander change alerts ...`, and return the commands that it writes."""
    written = list[ChangeLogic]()

    def submit(command: ChangeLogic, *_: Any) -> None:
        written.append(command)

    monkeypatch.setattr(change, "submit", submit)

    def run(*words: str) -> tuple[Result, list[ChangeLogic]]:
        return CliRunner().invoke(app, ["change", "alerts", *words]), written

    return run


def test_the_help_names_options_and_exit_codes() -> None:
    said = CliRunner().invoke(app, ["change", "--help"]).output
    for words in ("--logic", "--parameter", "--time", "--id", "Exit code 0", change.EXAMPLE):
        assert words in " ".join(said.split())


def test_a_change_without_a_class_or_parameters_is_refused(meander: Meander) -> None:
    result, written = meander("above")
    assert (result.exit_code, written) == (2, [])
    assert "neither --logic nor --parameter is given" in result.output


@pytest.mark.parametrize("text", ["limit", "=5", "", "limit=NaN", "limit=-Infinity", "w=[1e999]"])
def test_a_parameter_without_a_name_or_a_value_is_refused(text: str, meander: Meander) -> None:
    result, written = meander("above", "--parameter", text)
    assert (result.exit_code, written) == (2, [])
    assert "--parameter: " in result.output
    with pytest.raises(SetupError, match="write such as"):
        parse_parameters([text])


WORDS: dict[str, tuple[list[str], dict[str, object]]] = {
    "a class": (["--logic", "rules:Below"], {"logic": "rules:Below"}),
    "parameters": (
        ["--parameter", "limit=4.5", "--parameter", "city=Rome", "--parameter", 'words=["a=b"]'],
        {"parameters": {"limit": 4.5, "city": "Rome", "words": ["a=b"]}},
    ),
    "a text that looks like a number": (
        ["--parameter", 'zip="007"'],
        {"parameters": {"zip": "007"}},
    ),
    "no text": (["--parameter", "city="], {"parameters": {"city": ""}}),
}


@pytest.mark.parametrize("name", WORDS)
def test_the_command_says_what_its_words_say(name: str, meander: Meander) -> None:
    words, new = WORDS[name]
    result, (written,) = meander("above", *words, "--time", "7000", "--id", "c1")
    assert result.exit_code == 0
    data = written.model_dump_json(exclude_unset=False).encode()
    parsed = parse_command(data, 4)
    assert isinstance(parsed, ChangeLogic)
    assert (parsed.id, parsed.time, list(parsed.operators)) == ("c1", 7_000, ["above"])
    assert parsed.operators["above"].model_dump(include=set(new)) == new


def test_each_event_of_a_change_has_a_sentence() -> None:
    accepted = LogicAccepted("c", 3, ["above"])
    changed = LogicChanged("c", 5, 5 << 20, {"above": "Above(limit=5)"}, 1234.5)
    assert sentence(accepted) == "accepted: all workers load the logic"
    assert sentence(changed) == "completed: from 5 ms on above is Above(limit=5) (1,234 ms)"
    assert sentence(CommandRejected("c", 3, "it fails")) == ""
