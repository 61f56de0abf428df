"""The commands of `meander` by name. A command is imported when it is called, not before.

Guarantees that the overview of the commands imports none of them: their summaries stand here.
Invariant: a summary is the first sentence of its command's help. Cost: 0.3 s of CPU for
`meander --help`, where the import of all commands takes another second.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping
from importlib import import_module
from typing import Any, Final, NamedTuple

import typer
from typer.core import TyperCommand

from meander.app.cli.command_group import CommandGroup


class CommandEntry(NamedTuple):
    """A command, or a group of commands."""

    module: str
    """The module whose `commands` hold it."""
    summary: str


ENTRIES: Final = {
    "run": CommandEntry(
        "run", "Run a flow until Ctrl-C, or with --until-end to the end of its sources."
    ),
    "bootstrap": CommandEntry(
        "bootstrap", "Write initial states of a flow from a table with one row per key."
    ),
    "status": CommandEntry("status", "Show a flow's workers, frontiers, lag, bins and migrations."),
    "migrate": CommandEntry("migrate", "Move bins of keys to a worker while the flow runs."),
    "abort": CommandEntry(
        "migrate",
        "Abort a command that moves bins: moves under way complete, and all other bins stay.",
    ),
    "rescale": CommandEntry(
        "rescale", "Add workers to a running flow, or remove the workers that joined last."
    ),
    "change": CommandEntry(
        "change",
        "Replace the logic of an operator: all records from one logical time on meet the new one.",
    ),
    "checkpoint": CommandEntry(
        "checkpoints",
        "Take a checkpoint of a running flow. Its next run restarts from the newest checkpoint.",
    ),
    "checkpoints": CommandEntry(
        "checkpoints", "List the checkpoints that a flow can restart from, the newest first."
    ),
    "stop": CommandEntry(
        "checkpoints", "Stop a running flow and wait until its workers have ended."
    ),
    "reset": CommandEntry(
        "checkpoints",
        "Delete the states, checkpoints and source positions of a flow that does not run.",
    ),
    "sql": CommandEntry(
        "sql",
        "Query the states and topics of a flow with Spark SQL. The flow may run meanwhile.",
    ),
    "new": CommandEntry(
        "new", "Make a folder with a flow, its test, Kafka by Compose, and a workflow for CI."
    ),
    "dev": CommandEntry(
        "dev", "Run a flow here, print its results, and start it again whenever its code is saved."
    ),
    "config": CommandEntry(
        "config",
        "Show the settings for Kafka, or those of a flow, from file, environment and options.",
    ),
    "demo": CommandEntry(
        "demo",
        "Send real flights through Kafka and Spark while bins move, and check each result.",
    ),
    "topics": CommandEntry(
        "topics", "List the internal topics of flows with their purpose, or create topics."
    ),
    "broker": CommandEntry("broker", "Run a local Apache Kafka: one process on 127.0.0.1."),
    "trace": CommandEntry("trace", "Show the collections that the operators of a flow keep."),
    "plan": CommandEntry("plan", "Show and change the execution plan of a running flow."),
    "dead-letters": CommandEntry(
        "dead_letters",
        "List the dead letters of a flow (the command list may be left out), show them, or produce"
        " their records again.",
    ),
}
"""All commands, in the order of the overview."""


class LazyCommands(MutableMapping[str, Any]):
    """A mapping from the name of each command to the command, which a function makes when it is
    asked for."""

    def __init__(self, make: Callable[[str], object]) -> None:
        self._make, self._made = make, dict[str, object]()

    def __getitem__(self, name: str) -> object:
        """Return a command. Raise KeyError for another name."""
        if name not in self._made:
            if name not in ENTRIES:
                raise KeyError(name)
            self._made[name] = self._make(name)
        return self._made[name]

    def __setitem__(self, name: str, command: object) -> None:
        """Put a command in place of another."""
        self._made[name] = command

    def __delitem__(self, name: str) -> None:
        """Have a command made again."""
        del self._made[name]

    def __iter__(self) -> Iterator[str]:
        """Yield the names in the order of the overview."""
        return iter(ENTRIES)

    def __len__(self) -> int:
        """Return the number of commands."""
        return len(ENTRIES)


class LazyGroup(CommandGroup):
    """The group of all commands."""

    def __init__(self, **given: object) -> None:
        super().__init__(**given)  # type: ignore[arg-type]
        self.commands = LazyCommands(load)

    def format_help(self, ctx: typer.Context, formatter: object) -> None:  # type: ignore[override]
        """Write the overview from summaries alone."""
        commands, self.commands = self.commands, LazyCommands(summarized)
        try:
            super().format_help(ctx, formatter)  # type: ignore[arg-type]
        finally:
            self.commands = commands


def load(name: str) -> object:
    """Import a command or a group, and return it."""
    module = import_module(f"meander.app.cli.{ENTRIES[name].module}")
    group = typer.main.get_group(module.commands)
    found = group.commands.get(name, group)
    found.name = name
    return found


def summarized(name: str) -> object:
    """Return a command that has nothing but its name and its summary."""
    return TyperCommand(name, help=ENTRIES[name].summary)
