"""Share options among commands, and turn the errors of a command into exit codes.

`connected` gives a command the options of `Connection`, or of `FlowConnection`, in place of its
parameter `to`. So each command lists only its own options, and `--help` shows all.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, get_type_hints

import typer

from meander.app.common.output import CommandOutput
from meander.app.config import cluster
from meander.app.config.flow_settings import flow_settings
from meander.app.config.settings import Settings
from meander.connectors.topics.internal_topics import TopicNames, topic_names

Bootstrap = Annotated[
    str | None,
    typer.Option(
        help="Kafka's addresses, host:port,... (or MEANDER_BOOTSTRAP). Default: the local broker."
    ),
]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", help="A librdkafka setting, name=value; can be repeated."),
]
Config = Annotated[
    Path | None,
    typer.Option(help="A file with settings. Default: meander.toml here, if it exists."),
]
Prefix = Annotated[
    str | None,
    typer.Option(
        help="Begins the names of the flow's internal topics. Default: none.", show_default=False
    ),
]
Json = Annotated[
    bool,
    typer.Option("--json", help="Print JSON lines (the default when stdout is not a terminal)."),
]
FlowModule = Annotated[
    Path,
    typer.Argument(
        metavar="FLOW.py",
        help="The Python file that defines the flow; FLOW.py:NAME where it defines several.",
    ),
]
Flow = Annotated[str, typer.Argument(help="The flow's name.", show_default=False)]
CommandId = Annotated[
    str | None, typer.Option("--id", help="The command's id, unused so far. Default: a random one.")
]
Wait = Annotated[
    bool, typer.Option("--wait/--no-wait", help="Follow the command to its end, or return at once.")
]


@dataclass(frozen=True, slots=True)
class Connection:
    """A connection of a command to Kafka, and to the terminal."""

    bootstrap: Bootstrap = None
    set_: Set = None
    config: Config = None
    as_json: Json = False

    @property
    def output(self) -> CommandOutput:
        """Where the command prints."""
        return CommandOutput.of(self.as_json)

    def settings(self) -> Settings:
        """Read the settings from file, environment and options."""
        return cluster.settings(self.config, self.set_, self.bootstrap)

    def kafka(self) -> dict[str, str]:
        """Return the settings for librdkafka. Raises SetupError where no broker answers."""
        return cluster.kafka(self.config, self.set_, self.bootstrap)


@dataclass(frozen=True, slots=True)
class FlowConnection(Connection):
    """A connection of a command that concerns a flow."""

    prefix: Prefix = None

    def prefix_of(self, flow: str | None) -> str:
        """Return the prefix of a flow, or of all flows: that of the command line, else that of the
        settings, else none."""
        if self.prefix is not None:
            return self.prefix
        found = flow_settings(self.config, os.environ, flow).get("prefix")
        return found.value if found is not None and isinstance(found.value, str) else ""

    def topics_of(self, flow: str) -> TopicNames:
        """Return the names of the internal topics of a flow."""
        return topic_names(self.prefix_of(flow), flow)


def connected(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command with the options of its parameter `to` in place of that parameter."""
    kind = get_type_hints(command)["to"]
    hints, names = get_type_hints(kind, include_extras=True), [one.name for one in fields(kind)]

    @functools.wraps(command)
    def run(**given: object) -> None:
        to = kind(**{name: given.pop(name) for name in names})
        command(**given, to=to)

    own = inspect.signature(command, eval_str=True)
    shared = [
        inspect.Parameter(
            one.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=one.default,
            annotation=hints[one.name],
        )
        for one in fields(kind)
    ]
    parameters = [*(one for name, one in own.parameters.items() if name != "to"), *shared]
    run.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in parameters}
    return run
