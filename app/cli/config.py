"""`meander config`: settings as they result, with the origin of each."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Annotated

import typer
from typer.core import TyperCommand, TyperGroup

from meander.app.cli.flow_options import converted, options_of
from meander.app.cli.options import Connection, connected
from meander.app.config.flow_settings import flow_settings
from meander.connectors.kafka.client import FIXED

EXAMPLE = "Example: meander config --flow counts"
commands = typer.Typer()


@commands.command(epilog=EXAMPLE)
@connected
def config(
    context: typer.Context,
    flow: Annotated[
        str | None,
        typer.Option(help="Show the settings of the runs of this flow.", show_default=False),
    ] = None,
    *,
    to: Connection,
) -> None:
    """Show the settings for Kafka, or those of a flow, from file, environment and options.

    Each has its origin, and secrets are hidden.
    """
    title = "settings" if flow is None else f"settings of {flow}"
    rows = map(_in_use, to.settings().shown()) if flow is None else _of_flow(context, flow, to)
    to.output.table(title, ["name", "value", "from"], [[*row] for row in rows])


def _in_use(row: tuple[str, str, str]) -> tuple[str, str, str]:
    name, given, origin = row
    value = str(FIXED[name]).lower() if name in FIXED else given
    return row if value == given else (name, value, f"Meander, in place of {origin}")


def _of_flow(context: typer.Context, flow: str, to: Connection) -> Iterator[tuple[str, str, str]]:
    """Yield name, value and origin of each option of `meander run` that is a setting."""
    root = context.find_root().command
    assert isinstance(root, TyperGroup)
    run = root.commands["run"]
    assert isinstance(run, TyperCommand)
    found = flow_settings(to.config, os.environ, flow)
    given = {option.name: one for option, one in converted(run, context, found)}
    for name, option in options_of(run).items():
        one = given.get(option.name)
        value, origin = (option.default, "default") if one is None else (one.value, one.origin)
        yield name, _shown(value), origin


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return " ".join(map(str, value))
    return "" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
