"""`meander plan`: show the plan in force, compare another with it, apply it, and list all plans."""

from __future__ import annotations

import getpass
import socket
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from meander.app.cli.command_group import CommandGroup
from meander.app.cli.follow import new_id, submit
from meander.app.cli.options import (
    CommandId,
    Flow,
    FlowConnection,
    Wait,
    connected,
)
from meander.app.cli.plan_file import read_document
from meander.app.cli.views.plan import plan_table, show_apply, show_difference, show_plan
from meander.connectors.kafka import client
from meander.connectors.topics.internal_topics import expect_started
from meander.connectors.topics.plans import read_plans
from meander.schemas.control import ApplyPlan
from meander.schemas.execution_plan import PlanDocument

EXAMPLE = "Example: meander plan show counts > plan.yaml"
commands = typer.Typer(
    cls=CommandGroup,
    no_args_is_help=True,
    help="Show and change the execution plan of a running flow.",
    epilog=EXAMPLE,
)
PlanFile = Annotated[
    Path, typer.Argument(metavar="FILE.yaml", help="The plan, or the sections that change.")
]


@commands.callback()
def plan() -> None:
    """Show and change the execution plan of a running flow."""


@commands.command(epilog=EXAMPLE)
@connected
def show(flow: Flow, *, to: FlowConnection) -> None:
    """Print the plan in force as YAML, which `meander plan apply` reads: workers, the logic of
    operators, the owner of each bin and the reader of each partition.

    With --json it is one JSON object, which `meander plan apply` reads too.
    """
    command = _command(PlanDocument(), dry_run=True)
    submit(command, flow, to, partial(show_plan, as_yaml=not to.as_json), quiet=True)


@commands.command(epilog="Example: meander plan diff counts plan.yaml")
@connected
def diff(flow: Flow, file: PlanFile, *, to: FlowConnection) -> None:
    """Print the operations that lead from the plan in force to another one; nothing changes.

    Exit code 0: the plan is valid; 1: the flow would refuse it.
    """
    command = _command(read_document(file), dry_run=True)
    submit(command, flow, to, show_difference, quiet=True)


@commands.command(epilog='Example: meander plan apply counts plan.yaml --why "a new worker"')
@connected
def apply(
    flow: Flow,
    file: PlanFile,
    why: Annotated[str | None, typer.Option(help="The reason, for the history of plans.")] = None,
    at: Annotated[
        int | None,
        typer.Option(
            "--time", help="Change at this logical time, milliseconds since 1970. Default: soon."
        ),
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option(min=0.001, help="Time limit of the preparation. Default: 600."),
    ] = None,
    name: CommandId = None,
    wait: Wait = True,
    *,
    to: FlowConnection,
) -> None:
    """Bring another plan into force, all of it at one logical time or nothing of it.

    Workers start, bins are copied ahead and logic is loaded first. Where any of it fails, the old
    plan stays in force. Sections that the file leaves out stay as they are.

    Exit code 0: the plan is in force; 1: it was rejected, aborted or rolled back.
    """
    command = _command(read_document(file), name, at=at, why=why or "", seconds=seconds)
    submit(command, flow, to, partial(show_apply, command=command.id) if wait else None)


@commands.command(epilog="Example: meander plan history counts")
@connected
def history(flow: Flow, *, to: FlowConnection) -> None:
    """List every plan that was applied: when, by whom, why, its operations and its outcome."""
    settings, names = to.kafka(), to.topics_of(flow)
    expect_started(client.admin(settings), names.plans, flow)
    plan_table(to.output, [*read_plans(settings, names.plans).values()])


def _command(
    document: PlanDocument,
    name: str | None = None,
    *,
    dry_run: bool = False,
    at: int | None = None,
    why: str = "",
    seconds: float | None = None,
) -> ApplyPlan:
    return ApplyPlan.model_construct(
        type="apply_plan", id=name or new_id(), plan=document, time=at, by=_user(), why=why,
        seconds=seconds, dry_run=dry_run,
    )  # fmt: skip


def _user() -> str:
    """Return who runs this command."""
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (KeyError, OSError):
        return socket.gethostname()
