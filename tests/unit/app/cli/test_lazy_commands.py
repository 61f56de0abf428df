"""The overview of the commands says what each of them says, and imports none of them."""

from __future__ import annotations

import subprocess
import sys

import pytest

from meander.app.cli.lazy_commands import ENTRIES, LazyCommands, load

HEAVY = "confluent_kafka", "numpy", "pydantic", "pyarrow", "meander.dataflow"


@pytest.mark.parametrize("name", ENTRIES)
def test_a_summary_begins_the_help_of_its_command(name: str) -> None:
    help: str = load(name).help  # type: ignore[attr-defined]
    assert help.split("\n\n")[0].replace("\n", " ") == ENTRIES[name].summary


def test_the_overview_imports_no_command() -> None:
    script = (
        "import sys\nfrom meander.app.cli.main import app\napp(['--help'], standalone_mode=False)\n"
        f"assert not {HEAVY!r} & sys.modules.keys()"
    ).replace(repr(HEAVY), repr({*HEAVY}))
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert said.returncode == 0, said.stderr
    assert all(name in said.stdout for name in ENTRIES)


def test_another_command_is_unknown() -> None:
    commands = LazyCommands(load)
    assert "stat" not in commands
    assert [*commands] == [*ENTRIES]
    assert len(commands) == len(ENTRIES)
