"""`meander sql`: print the rows of a query, and the views of a flow."""

from __future__ import annotations

import base64
import csv
import json
import sys
import time
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Literal

from meander.app.common.output import CommandOutput, duration
from meander.schemas.errors import MeanderError, SetupError

if TYPE_CHECKING:
    # Spark and Arrow take a second to load.
    import pyarrow as pa

    from meander.app.sql.catalog import Catalog, ViewName
    from meander.app.sql.query import SqlQuery

    Columns = list[tuple[str, str]] | MeanderError

Format = Literal["table", "json", "csv"]


def print_rows(output: CommandOutput, form: Format, rows: pa.Table) -> None:
    """Print the rows of a query. Raise SetupError where JSON cannot tell columns apart."""
    names = list(rows.column_names)
    match form:
        case "table":
            output.table("", names, [*_rows(rows)], names=0, show=_cell)
        case "csv":
            writer = csv.writer(sys.stdout, lineterminator="\n")
            writer.writerow(names)
            writer.writerows([_text(value) for value in row] for row in _rows(rows))
        case "json":
            twice = sorted({name for name in names if names.count(name) > 1})
            if twice:
                raise SetupError(
                    "query", f"several columns are named {twice[0]!r}", "name them with AS"
                )
            for row in _rows(rows):
                output.line(dict(zip(names, map(_json, row), strict=True)))


def _rows(rows: pa.Table) -> Iterator[tuple[object, ...]]:
    for batch in rows.to_batches():
        columns = [one.to_pylist(maps_as_pydicts="strict") for one in batch.columns]
        yield from zip(*columns, strict=True)


def _json(value: object) -> object:
    r"""Return a value as JSON has it.

    >>> _json({"at": datetime(2026, 3, 1), "raw": [b"a", b"\xff"]})
    {'at': '2026-03-01T00:00:00', 'raw': ['a', {'base64': '/w=='}]}
    """
    match value:
        case None | bool() | int() | float() | str():
            return value
        case dict():
            return {str(key): _json(one) for key, one in value.items()}
        case list():
            return [_json(one) for one in value]
        case bytes():
            try:
                return value.decode()
            except UnicodeDecodeError:
                return {"base64": base64.b64encode(value).decode()}
        case datetime():
            return value.isoformat()
    return str(value)


def _text(value: object) -> object:
    """Return a value as a field of CSV."""
    if value is None:
        return ""
    found = _json(value)
    return json.dumps(found) if isinstance(found, dict | list) else found


def _cell(value: object) -> str:
    """Return a value as a table shows it.

    >>> _cell(1234567), _cell(None), _cell({"n": 1.25})
    ('1234567', '-', '{"n": 1.25}')
    """
    match value:
        case None:
            return "-"
        case datetime():
            return value.strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
    found = _json(value)
    return found if isinstance(found, str) else json.dumps(found, ensure_ascii=False)


def print_views(
    output: CommandOutput, flow: str, views: Iterable[tuple[ViewName, str, Columns]]
) -> None:
    """Print the views of a flow with their columns."""
    if output.as_json:
        for view, name, columns in views:
            output.line({"view": name, "kind": view.kind, "name": view.name, **_fields(columns)})
        return
    rows = [(name, view.kind, _listed(columns)) for view, name, columns in views]
    output.table(f"views of {flow}", ["view", "kind", "columns"], rows)


def _fields(columns: Columns) -> dict[str, object]:
    if isinstance(columns, MeanderError):
        return {"columns": [], "error": str(columns)}
    return {"columns": [{"name": name, "type": kind} for name, kind in columns], "error": None}


def _listed(columns: Columns) -> str:
    if isinstance(columns, MeanderError):
        return f"unknown: {columns.cause}"
    return "\n".join(f"{name} {kind}" for name, kind in columns)


def say_about(query: SqlQuery, catalog: Catalog) -> None:
    """Say on standard error which checkpoint the states are of, and which views have errors."""
    if any(view.kind == "state" for view in query.views):
        one = catalog.checkpoint
        age = duration(max(0.0, time.time() - one.millis / 1000))
        name = f", savepoint {one.savepoint}" if one.savepoint else ""
        print(f"states of checkpoint {one.number}{name}, {age} old", file=sys.stderr)
    for view in query.with_errors:
        name = catalog.shown(view)
        print(
            f"view {name} has values that cannot be read, shown as null:"
            f" select error from {name} where error is not null",
            file=sys.stderr,
        )
