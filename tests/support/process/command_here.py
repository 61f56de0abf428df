"""A command of `meander` in the process of the test, which has loaded its modules once."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from pathlib import Path

from typer.testing import CliRunner

from meander.app.cli.main import app


@dataclass(frozen=True, slots=True)
class Done:
    """The output of a command, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[dict[str, object]]:
        """Return its output, one JSON object a line."""
        return [json.loads(line) for line in self.out.splitlines()]


def command_here(folder: Path, bootstrap: str, *words: str) -> Done:
    """Run a command in a folder to its end.

    >>> command_here(Path(), "127.0.0.1:1", "run", "nowhere.py").code
    2
    """
    with contextlib.chdir(folder):
        done = CliRunner().invoke(
            app, [*words], prog_name="meander", env={"MEANDER_BOOTSTRAP": bootstrap}
        )
    return Done(done.exit_code, done.stdout, done.stderr)
