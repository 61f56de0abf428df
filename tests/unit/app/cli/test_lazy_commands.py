"""The overview of the commands says what each of them says, and imports none of them."""

from __future__ import annotations

import subprocess
import sys

import pytest

from meander.app.cli.lazy_commands import ENTRIES, LazyCommands, load

HEAVY = "confluent_kafka", "numpy", "pydantic", "pyarrow", "meander.dataflow"
ENGINE = {"numpy", "fastavro", "pyarrow", "rocksdict"}


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


def test_the_options_of_a_command_import_no_library_of_records_or_states() -> None:
    """A command starts twice as fast without them, and most need none."""
    script = (
        f"import sys\nimport meander.app.cli.options\nassert not {ENGINE!r} & sys.modules.keys()"
    )
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert said.returncode == 0, said.stderr


def test_another_command_is_unknown() -> None:
    commands = LazyCommands(load)
    assert "stat" not in commands
    assert [*commands] == [*ENTRIES]
    assert len(commands) == len(ENTRIES)
