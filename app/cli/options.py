"""Options that many commands share, and how a command's errors become exit codes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from typer.core import TyperGroup

from meander.app.common.signals import Interrupted
from meander.schemas.errors import MeanderError
from meander.schemas.log_lines import LineLogger

log = LineLogger(__name__)

Bootstrap = Annotated[
    str | None,
    typer.Option(
        help="Kafka's addresses, host:port,...  Also: MEANDER_BOOTSTRAP. Else the local broker."
    ),
]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", help="A librdkafka setting, name=value; can be repeated."),
]
Config = Annotated[
    Path | None, typer.Option(help="A file with settings; meander.toml here, where it exists.")
]
Prefix = Annotated[str, typer.Option(help="Begins the names of the flow's internal topics.")]
Json = Annotated[
    bool,
    typer.Option("--json", help="Print JSON lines (the default when stdout is not a terminal)."),
]
Flow = Annotated[str, typer.Argument(help="The flow's name.", show_default=False)]
CommandId = Annotated[str | None, typer.Option("--id", help="Never used before in this run.")]
Wait = Annotated[bool, typer.Option("--wait/--no-wait", help="Follow the command to its end.")]


class CommandGroup(TyperGroup):
    """Commands whose expected failures are one sentence and an exit code."""

    def invoke(self, ctx: typer.Context) -> object:  # type: ignore[override]
        """Run one."""
        try:
            return super().invoke(ctx)
        except MeanderError as error:
            log.debug("command_failed", exc_info=error)
            print(error, file=sys.stderr)
            raise typer.Exit(error.exit_code) from None
        except Interrupted as interrupted:
            raise typer.Exit(interrupted.exit_code) from None
