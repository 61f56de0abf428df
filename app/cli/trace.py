"""`meander trace show`: the contents of a collection at a logical time, from a checkpoint."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from meander.app.cli.command_group import CommandGroup
from meander.app.cli.options import Flow, FlowConnection, connected
from meander.app.cli.views.trace import parse_time, show_rows

EXAMPLE = "Example: meander trace show distances nearest --as-of 2026-03-01T12:00:00Z"
commands = typer.Typer(
    cls=CommandGroup,
    no_args_is_help=True,
    help="Show the collections that the operators of a flow keep.",
    epilog=EXAMPLE,
)


@commands.callback()
def trace() -> None:
    """Show the collections that the operators of a flow keep."""


@commands.command(epilog=EXAMPLE)
@connected
def show(
    flow: Flow,
    operator: Annotated[
        str,
        typer.Argument(
            help="The operator that keeps the collection: arrange, join or a reduction.",
            show_default=False,
        ),
    ],
    as_of: Annotated[
        str | None,
        typer.Option(
            help="The logical time: milliseconds since 1970, or such as 2026-03-01T12:00:00Z (UTC"
            " without a zone). Default: the newest one of the checkpoint."
        ),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(help="Show the rows of this key alone: an integer, a text, or JSON."),
    ] = None,
    arrangement: Annotated[
        Literal["output", "input", "left", "right"] | None,
        typer.Option(
            help="What of the operator: its output, the input of a reduction, or a side of a join."
            " Default: the output, which a join does not keep."
        ),
    ] = None,
    checkpoint: Annotated[
        str | None,
        typer.Option(help="A checkpoint's number, or a savepoint's name. Default: the newest."),
    ] = None,
    *,
    to: FlowConnection,
) -> None:
    """Show the rows of a collection at a logical time, each with its count.

    The rows come from a checkpoint, so the flow need not run. A bin that was rewritten since then
    no longer tells apart earlier times: the command refuses those.
    """
    millis = None if as_of is None else parse_time(as_of)
    output, settings, names = to.output, to.kafka(), to.topics_of(flow)
    # Here, because it brings numba, which no other command waits for.
    from meander.app.recovery.arrangement_rows import read_rows, select_checkpoint
    from meander.dataflow.operators.collection.checkpointed_rows import find_arrangement

    with output.working("asking Kafka"):
        found = select_checkpoint(settings, names, flow, checkpoint)
        kept = find_arrangement(found, operator, arrangement)
        rows = read_rows(settings, names, found, kept, millis, key)
    show_rows(output, flow, found.number, kept, rows)
