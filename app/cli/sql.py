"""`meander sql`: query the states and topics of a flow with Spark SQL."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from meander.app.cli.options import FlowConnection, connected
from meander.app.cli.views.sql import Format, print_rows, print_views, say_about
from meander.app.loading.flow_code import load
from meander.app.loading.loader import file_and_flow
from meander.schemas.errors import SetupError

EXAMPLE = 'Example: meander sql counts.py "select key, value from count order by value desc"'
SAMPLE = 1000
TABLE_ROWS = 100
"""The most rows of a table, unless the limit says otherwise."""


commands = typer.Typer()


@commands.command(epilog=EXAMPLE)
@connected
def sql(
    flow: Annotated[
        str,
        typer.Argument(
            metavar="FLOW",
            help="The file of the flow, FLOW.py or FLOW.py:NAME, or the flow's name alone.",
            show_default=False,
        ),
    ],
    query: Annotated[
        str | None,
        typer.Argument(help="The query. Without one, list the views.", show_default=False),
    ] = None,
    file: Annotated[
        Path | None, typer.Option(help="A file with the query.", show_default=False)
    ] = None,
    form: Annotated[
        Format | None,
        typer.Option(
            "--format",
            help="How rows are printed. Default: a table on a terminal, else JSON lines.",
            show_default=False,
        ),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            min=1, help="The most rows. Default: 100 in a table, else all.", show_default=False
        ),
    ] = None,
    at: Annotated[
        str | None,
        typer.Option(
            help="The checkpoint of the states: its number, or a savepoint's name. Default: the"
            " newest.",
            show_default=False,
        ),
    ] = None,
    sample: Annotated[
        int, typer.Option(min=1, help="The rows of a view that decide on its columns.")
    ] = SAMPLE,
    *,
    to: FlowConnection,
) -> None:
    """Query the states and topics of a flow with Spark SQL. The flow may run meanwhile.

    Each stateful operator is a view of its name: key, value. Its states are those of a checkpoint.
    Each topic that the flow reads or writes is a view, too: key, value, time, partition, offset.
    Given the flow's name alone, all topics are views.

    Exit code 0: done; 1: the query failed; 2: the query, or an option, is wrong.
    """
    text = _text(query, file)
    # Spark takes a while to import, and the other commands do without.
    from meander.app.sql.catalog import Catalog
    from meander.app.sql.query import listed_views, open_query

    module = _module(flow)
    name = flow if module is None else load(module).flow.name
    chosen: Format = form or ("json" if to.output.as_json else "table")
    output = replace(to.output, as_json=chosen == "json")
    progress = output if output.console.is_terminal else to.output
    catalog = Catalog(to.kafka(), to.topics_of(name), name, module, at)
    if text is None:
        with progress.working("reading samples"):
            views = [*listed_views(catalog, sample)]
            missing = catalog.missing_states
        print_views(output, name, views)
        if missing is not None:
            typer.echo(f"states are left out: {missing}", err=True)
        return
    most = limit or (TABLE_ROWS + 1 if chosen == "table" else None)
    with ExitStack() as stack:
        with progress.working("starting Spark"):
            running = stack.enter_context(open_query(catalog, sample))
        with progress.working("running the query"):
            rows = running.run(text, most)
        cut = limit is None and chosen == "table" and rows.num_rows > TABLE_ROWS
        print_rows(output, chosen, rows.slice(0, TABLE_ROWS) if cut else rows)
        if cut:
            typer.echo(f"these are the first {TABLE_ROWS} rows; --limit shows more", err=True)
        say_about(running, catalog)


def _text(query: str | None, file: Path | None) -> str | None:
    """Return the query of the command line or of a file; None for neither."""
    if query is not None and file is not None:
        raise SetupError("query", "there is one beside --file", "give one of them")
    if file is None:
        return query
    try:
        return file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise SetupError(
            f"file {str(file)!r}", f"it cannot be read ({error})", "name the file of a query"
        ) from error


def _module(flow: str) -> Path | None:
    """Return the module that a flow is given by; None for a name.

    >>> _module("flows/counts.py:counts"), _module("counts")
    (PosixPath('flows/counts.py:counts'), None)
    """
    return Path(flow) if file_and_flow(Path(flow))[0].suffix == ".py" else None
