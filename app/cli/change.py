"""`meander change`: replace the logic of an operator while the flow runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from typing import Annotated

import typer
from pydantic import JsonValue

from meander.app.cli.follow import new_id, show_end, submit
from meander.app.cli.options import CommandId, Flow, FlowConnection, Wait, connected
from meander.schemas.control import ChangeLogic
from meander.schemas.errors import SetupError
from meander.schemas.execution_plan import NewLogic
from meander.schemas.status import Event, LogicAccepted, LogicChanged

EXAMPLE = "Example: meander change alerts above --parameter limit=4.5"
commands = typer.Typer()


@commands.command(epilog=EXAMPLE)
@connected
def change(
    flow: Flow,
    operator: Annotated[
        str, typer.Argument(help="The operator, as its flow names it.", show_default=False)
    ],
    logic: Annotated[
        str | None,
        typer.Option(
            help="The class: one of the flow's module, or module:Class. Default: the one it has."
        ),
    ] = None,
    parameter: Annotated[
        list[str] | None,
        typer.Option(help="A field of the class and its value as JSON or text; can be repeated."),
    ] = None,
    at: Annotated[
        int | None,
        typer.Option(
            "--time", help="Change at this logical time, milliseconds since 1970. Default: soon."
        ),
    ] = None,
    name: CommandId = None,
    wait: Wait = True,
    *,
    to: FlowConnection,
) -> None:
    """Replace the logic of an operator: all records from one logical time on meet the new one.

    Every worker loads and checks it first. Where one cannot, nothing changes.

    Exit code 0: the new logic is in force on all workers; 1: the command was rejected.
    """
    if logic is None and not parameter:
        raise SetupError(
            "meander change", "neither --logic nor --parameter is given",
            "give one of them, such as --parameter limit=4.5",
        )  # fmt: skip
    new = NewLogic(logic=logic, parameters=parse_parameters(parameter or ()))
    command = ChangeLogic.model_construct(
        type="change_logic", id=name or new_id(), operators={operator: new}, time=at
    )
    submit(command, flow, to, partial(show_end, said=sentence) if wait else None)


def parse_parameters(texts: Sequence[str]) -> dict[str, JsonValue]:
    """Return parameters that are given as name=value. Raises SetupError for another text.

    >>> parse_parameters(["limit=4.5", "words=[1, 2]", "city=Rome"])
    {'limit': 4.5, 'words': [1, 2], 'city': 'Rome'}
    """
    found = dict[str, JsonValue]()
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise SetupError(
                "--parameter", f"{text!r} is no name=value", "write such as --parameter limit=4.5"
            )
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value
        try:
            json.dumps(found[name], allow_nan=False)
        except ValueError:
            raise SetupError(
                "--parameter", f"{text!r} has no finite number", "write such as limit=4.5"
            ) from None
    return found


def sentence(event: Event) -> str:
    """Return a sentence about a change of logic; '' for other events."""
    match event:
        case LogicAccepted():
            return "accepted: all workers load the logic"
        case LogicChanged(versions=versions, time=time, ms=ms):
            said = "; ".join(f"{operator} is {one}" for operator, one in versions.items())
            return f"completed: from {time} ms on {said} ({ms:,.0f} ms)"
    return ""
