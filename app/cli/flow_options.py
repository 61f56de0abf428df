"""Options of `meander run` that may stand in the settings of a flow.

Guarantees that the command line overrides the environment, the environment the table of the flow,
that table the one of all flows, and each of them a default. An unknown name or a wrong value is a
SetupError that names its origin. Cost: one read of a small file.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path

import typer
from typer.core import TyperCommand, TyperOption

from meander.app.cli.options import FlowConnection
from meander.app.common.output import log_to
from meander.app.config.flow_settings import FlowSetting, flow_settings
from meander.app.loading.flow_code import load
from meander.schemas.errors import SetupError

OTHERS = {
    "from": ("each start would go back to that checkpoint", "give --from to the one run"),
    "bootstrap": ("it belongs to all flows", "write it above the tables, or MEANDER_BOOTSTRAP"),
    "set": ("librdkafka's settings belong to all flows", "write them into the table [kafka]"),
    "config": ("a file names no other one", "give --config, or write all into one file"),
    "json": ("it belongs to one command", "give --json"),
}
"""The options that are no settings of a flow, each with its reason and the remedy."""


@dataclass(frozen=True, slots=True)
class Resolved:
    """A value of an option, with its origin."""

    value: object
    origin: str


def with_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command whose options may come from the settings of its flow.

    The command has the parameters `context`, `module` and `to`, and gets the flow of the module in
    place of its parameter `flow`.
    """

    @functools.wraps(command)
    def run(*, context: typer.Context, module: Path, to: FlowConnection, **given: object) -> None:
        log_to(to.output, context.obj)
        flow = load(module)
        found = flow_settings(to.config, os.environ, flow.flow.name)
        values = values_of(context, found)
        if isinstance(prefix := values.pop("prefix", None), str):
            to = replace(to, prefix=prefix)
        command(context=context, module=module, to=to, flow=flow, **(given | values))

    own = inspect.signature(command, eval_str=True)
    shown = [one for name, one in own.parameters.items() if name != "flow"]
    run.__signature__ = own.replace(parameters=shown)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in shown}
    return run


def values_of(context: typer.Context, found: Mapping[str, FlowSetting]) -> dict[str, object]:
    """Return the value of each parameter that comes from a setting. Raises SetupError for an
    unknown name or a wrong value, also where the command line overrides it."""
    command = context.command
    assert isinstance(command, TyperCommand)
    values = dict[str, object]()
    for option, one in converted(command, context, found):
        assert option.name is not None
        source = context.get_parameter_source(option.name)
        if source is not None and source.name != "COMMANDLINE":
            values[option.name] = one.value
    return values


def converted(
    command: TyperCommand, context: typer.Context, found: Mapping[str, FlowSetting]
) -> Iterator[tuple[TyperOption, Resolved]]:
    """Yield the option and the value of each setting. Raises SetupError as `values_of` does."""
    options = options_of(command)
    for name, setting in found.items():
        subject = f"setting '{name}' ({setting.origin})"
        if name not in options:
            raise SetupError(subject, *_unknown(name, [*options]))
        option = options[name]
        yield option, Resolved(_convert(option, context, setting, subject), setting.origin)


def options_of(command: TyperCommand) -> dict[str, TyperOption]:
    """Return the options of `meander run` that are settings, by the names of these settings."""
    options = {
        max(one.opts, key=len).removeprefix("--").replace("-", "_"): one
        for one in command.params
        if isinstance(one, TyperOption)
    }
    return {name: one for name, one in options.items() if name not in {*OTHERS, "help"}}


def _unknown(name: str, known: list[str]) -> tuple[str, str]:
    """Return why no setting has a name, and the remedy."""
    if name in OTHERS:
        return OTHERS[name]
    near = get_close_matches(name, known, 1)
    remedy = f"write '{near[0]}'" if near else "'meander config --flow NAME' lists all settings"
    return "no flow has such a setting", remedy


def _convert(
    option: TyperOption, context: typer.Context, setting: FlowSetting, subject: str
) -> object:
    """Return a setting as the command line would convert it."""
    long = max(option.opts, key=len)
    value = setting.value
    if option.multiple:
        value = value.split() if isinstance(value, str) else value
    elif isinstance(value, list):
        raise SetupError(subject, "it takes one value, not a list", "write one value")
    try:
        return option.process_value(context, value)
    except typer.BadParameter as error:
        cause = f"it refuses {value!r}: {error.message.rstrip('.')}"
        raise SetupError(subject, cause, f"'meander run --help' shows what {long} takes") from error
