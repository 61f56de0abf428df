"""`meander rescale`: change the number of workers."""

from __future__ import annotations

from typing import Annotated

import typer

from meander.app.cli.follow import new_id, submit
from meander.app.cli.options import CommandId, Flow, FlowConnection, Wait, connected
from meander.app.cli.views.rescale import show_rescale
from meander.schemas.control import Rescale

EXAMPLE = "Example: meander rescale counts --workers 3"
commands = typer.Typer()


@commands.command(epilog=EXAMPLE)
@connected
def rescale(
    flow: Flow,
    workers: Annotated[int, typer.Option(min=1, help="The new number of workers.")],
    name: CommandId = None,
    wait: Wait = True,
    *,
    to: FlowConnection,
) -> None:
    """Add workers to a running flow, or remove the workers that joined last.

    Workers that own no bin get their share, too.

    JSON lines hold each event of the command but single bins, and a summary every ten seconds.

    Exit code 0: all have joined or left; 1: some have not, some got no bins, or the command was
    rejected.
    """
    command = Rescale.model_construct(type="rescale", id=name or new_id(), workers=workers)
    submit(command, flow, to, show_rescale if wait else None)
