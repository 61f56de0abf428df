"""`meander migrate` and `meander abort`: move bins, and stop moving them."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from meander.app.cli.follow import new_id, submit
from meander.app.cli.options import CommandId, Flow, FlowConnection, Wait, connected
from meander.app.cli.views.migrate import parse_bins, show, show_abort, show_plan
from meander.schemas.control import Abort, Migrate
from meander.schemas.errors import SetupError

EXAMPLE = "Example: meander migrate counts --bins 0-127 --worker 1"
ABORT_EXAMPLE = "Example: meander abort counts m1"
commands = typer.Typer()


@commands.command(epilog=EXAMPLE)
@connected
def migrate(
    flow: Flow,
    worker: Annotated[
        int,
        typer.Option(min=0, help="The new owner of the bins. One that does not exist is started."),
    ],
    bins: Annotated[
        str | None, typer.Option(help="Bins to move: numbers and ranges such as 0-2,7, or all.")
    ] = None,
    key: Annotated[
        list[str] | None,
        typer.Option(help="A key, as text, whose bin moves; needs --whole-bins; can be repeated."),
    ] = None,
    whole_bins: Annotated[
        bool, typer.Option("--whole-bins", help="Confirm that all keys of these bins move.")
    ] = False,
    at: Annotated[
        int | None,
        typer.Option(
            "--time", help="Move at this logical time, milliseconds since 1970. Default: soon."
        ),
    ] = None,
    strategy: Annotated[
        Literal["batched", "fluid", "all-at-once"],
        typer.Option(
            help="Move bins in rounds with no worker twice in a round, one after another, or all at"
            " one time."
        ),
    ] = "batched",
    precopy: Annotated[
        bool,
        typer.Option(
            "--precopy/--no-precopy", help="Load layers at the new owner before the move, or not."
        ),
    ] = True,
    overlap: Annotated[
        Literal["queue", "reject"],
        typer.Option(help="Without --time: wait while other commands move these bins, or reject."),
    ] = "queue",
    order: Annotated[
        Literal["as-listed", "hottest", "coldest"],
        typer.Option(help="Which bins move first: as listed, or by their recent records."),
    ] = "as-listed",
    operator: Annotated[
        str | None,
        typer.Option(help="Move only the bins of this operator, which must have colocate=False."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show the moves and their rounds.")
    ] = False,
    name: CommandId = None,
    wait: Wait = True,
    *,
    to: FlowConnection,
) -> None:
    """Move bins of keys to a worker while the flow runs.

    A worker that does not exist is started first; meander rescale adds workers with even shares.

    JSON lines hold each event of the command but single bins, and a summary every ten seconds.

    Exit code 0: the worker owns all of them; 1: some bins stay, or the command was rejected or
    aborted.
    """
    if (bins is None) == (not key):
        cause = "both --bins and --key are given" if key else "neither --bins nor --key is given"
        raise SetupError("meander migrate", cause, "give one of them, such as --bins 0-2")
    if key and not whole_bins:
        cause = "all keys of a bin move together, so more keys than these would move"
        raise SetupError("--key", cause, "add --whole-bins to confirm, or name --bins")
    command = Migrate.model_construct(
        type="migrate", id=name or new_id(), worker=worker,
        bins=None if bins is None else parse_bins(bins), keys=key, whole_bins=whole_bins,
        time=at, strategy=strategy, precopy=precopy, overlap=overlap, order=order,
        operator=operator, dry_run=dry_run,
    )  # fmt: skip
    submit(command, flow, to, show_plan if dry_run else show if wait else None)


@commands.command(epilog=ABORT_EXAMPLE)
@connected
def abort(
    flow: Flow,
    command: Annotated[
        str, typer.Argument(help="The id of the command to abort.", show_default=False)
    ],
    name: CommandId = None,
    wait: Wait = True,
    *,
    to: FlowConnection,
) -> None:
    """Abort a command that moves bins: moves under way complete, and all other bins stay.

    A rescale can be aborted while it waits for its turn; once it has started it completes. A plan
    can be aborted until its time is decided.

    Exit code 0: the command has ended; 1: there is no such command, or it has to complete.
    """
    order = Abort.model_construct(type="abort", id=name or new_id(), command=command)
    submit(order, flow, to, show_abort if wait else None)
