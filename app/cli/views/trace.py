"""`meander trace show`: print the rows of a collection."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from meander.app.common.output import CommandOutput, at_millis
from meander.schemas.errors import SetupError
from meander.state.times.time import END_TIME, checked_millis, to_millis

if TYPE_CHECKING:
    # This loads numba, which takes half a second.
    from meander.dataflow.operators.collection.checkpointed_rows import CollectionRows
    from meander.state.checkpoint.arrangements import KeptArrangement

COLUMNS = "key", "value", "count"


def parse_time(text: str, option: str = "--as-of") -> int:
    """Return the time of an option as milliseconds since 1970. Raise SetupError for other texts.

    >>> parse_time("1500"), parse_time("1970-01-01T00:00:01.5"), parse_time("1970-01-01T01Z")
    (1500, 1500, 3600000)
    """
    try:
        if text.lstrip("-").isdecimal():
            return checked_millis(int(text))
        moment = datetime.fromisoformat(text)
        aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        return checked_millis(int(aware.timestamp() * 1000))
    except ValueError as error:
        raise SetupError(
            f"{option} {text}",
            f"it is no time ({error})",
            "give milliseconds since 1970, or a time such as 2026-03-01T12:00:00Z",
        ) from None


def show_rows(
    output: CommandOutput,
    flow: str,
    number: int,
    arrangement: KeptArrangement,
    rows: CollectionRows,
) -> None:
    """Print the rows of an arrangement in a checkpoint of a flow."""
    keys, values = map(_shown, rows.keys.tolist()), map(_shown, rows.values.tolist())
    cells = sorted(zip(keys, values, rows.counts.tolist(), strict=True), key=_order)
    ended = rows.time == END_TIME
    millis = to_millis(rows.time)
    if output.as_json:
        shared = {
            "arrangement": arrangement.name,
            "as_of": None if ended else millis,
            "checkpoint": number,
        }
        for row in cells:
            output.line(dict(zip(COLUMNS, row, strict=True)) | shared)
        return
    moment = "the end of the input" if ended else at_millis(millis)
    # A title of the table would be as narrow as its columns.
    output.say(
        f"{arrangement.name} of {arrangement.operator} in {flow} at {moment}, checkpoint {number}"
    )
    output.table("", COLUMNS, cells)


def _shown(value: object) -> str | int | float | None:
    """Return a value as JSON has it, or its Python form."""
    return value if isinstance(value, str | int | float | None) else repr(value)


def _order(row: tuple[object, ...]) -> list[tuple[str, object]]:
    """Return what orders rows: values of different types have no order of their own."""
    return [(type(one).__name__, one) for one in row if one is not None]
