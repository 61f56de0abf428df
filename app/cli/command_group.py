"""A group of commands, whose failures a terminal shows as one sentence.

It imports little, because every call of `meander` does.
"""

from __future__ import annotations

import sys

import typer
from typer.core import TyperGroup

from meander.app.common.signals import Interrupted
from meander.schemas.errors import MeanderError
from meander.schemas.log_lines import LineLogger

log = LineLogger(__name__)


class CommandGroup(TyperGroup):
    """A group of commands whose expected failures are one sentence and an exit code."""

    def invoke(self, ctx: typer.Context) -> object:  # type: ignore[override]
        """Run one command."""
        try:
            return super().invoke(ctx)
        except MeanderError as error:
            log.debug("command_failed", exc_info=error)
            print(error, file=sys.stderr)
            raise typer.Exit(error.exit_code) from None
        except Interrupted as interrupted:
            raise typer.Exit(interrupted.exit_code) from None
