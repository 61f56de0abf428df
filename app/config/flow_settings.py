"""Settings of the runs of a flow: from a file and the environment, where a later one overrides.

Guarantees that each setting names its origin. Names and values are those of the options of
`meander run`, which checks them. Cost: one read of a small file.

    meander.toml:   [flow]              for all flows
                    heartbeat_timeout = 20
                    [flow.counts]       for the flow counts
                    workers = 4
    environment:    MEANDER_FLOW__WORKERS=4
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from meander.app.config.settings_file import read_settings
from meander.schemas.errors import SetupError

ENVIRON = "MEANDER_FLOW__"
"""Begins the names of variables with settings of flows."""


@dataclass(frozen=True, slots=True)
class FlowSetting:
    """A setting of a flow, as text or a list of texts, with its origin."""

    value: str | list[str]
    origin: str


def flow_settings(
    file: Path | None, environ: Mapping[str, str], flow: str | None
) -> dict[str, FlowSetting]:
    """Return the settings of the runs of a flow by name; of None, those of all flows.

    The environment overrides the table of the flow, and that table overrides those of all flows.
    Raises SetupError for a missing or malformed file, and for a value that no setting has.

    >>> flow_settings(None, {"MEANDER_FLOW__ON_STOP": "none"}, "counts")
    {'on_stop': FlowSetting(value='none', origin='environment MEANDER_FLOW__ON_STOP')}
    """
    found = dict[str, FlowSetting]()
    if (read := read_settings(file)) is not None:
        path, tables = read[0], read[1].flow
        found |= _of_table(f"{path} [flow]", tables, tables=True)
        own = tables.get(flow) if flow is not None else None
        if isinstance(own, dict):
            found |= _of_table(f"{path} [flow.{flow}]", own)
    for variable, value in environ.items():
        if variable.startswith(ENVIRON):
            name = variable.removeprefix(ENVIRON).lower()
            found[name] = FlowSetting(value, f"environment {variable}")
    return found


def _of_table(
    origin: str, table: Mapping[str, object], *, tables: bool = False
) -> Iterator[tuple[str, FlowSetting]]:
    """Yield the settings of a table; `tables` in it belong to single flows, if it may have any."""
    for name, value in table.items():
        if not (tables and isinstance(value, dict)):
            yield name, FlowSetting(_as_given(name, value, origin), origin)


def _as_given(name: str, value: object, origin: str) -> str | list[str]:
    """Return a value as the command line would have it."""
    match value:
        case bool():
            return str(value).lower()
        case str() | int() | float():
            return str(value)
        case datetime():
            return value.isoformat()
        case list() if all(isinstance(one, str) for one in value):
            return [*value]
        case _:
            kind = "table" if isinstance(value, dict) else type(value).__name__
            raise SetupError(
                f"setting '{name}' ({origin})", f"no setting of a flow is such a {kind}",
                "write a text, a number, true, false, a time or a list of texts",
            )  # fmt: skip
