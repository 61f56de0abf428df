"""The command line: `meander run | bootstrap | status | migrate | rescale | change | plan |
checkpoint | checkpoints | stop | reset | new | dev | dead-letters | trace | sql | topics |
config | broker | demo`.

Guarantees exit codes: 0 done, 1 the flow or a command failed, 2 something outside has to be put
right (or the command line itself), 128 + n ended by signal n. An expected error is one sentence on
standard error; `--debug` adds the traceback.
"""

from __future__ import annotations

import logging
from typing import Annotated

import typer

from meander.app.cli.lazy_commands import LazyGroup
from meander.app.common.signals import SIGNALS

app = typer.Typer(
    cls=LazyGroup,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,
    help="Stateful streaming on Kafka and Spark whose running plan changes without a stop.",
    epilog="Start with: meander broker start",
)


@app.callback()
def common(
    context: typer.Context,
    debug: Annotated[bool, typer.Option(help="Log debug lines, and show tracebacks.")] = False,
) -> None:
    """Stateful streaming on Kafka and Spark whose running plan changes without a stop."""
    context.obj = debug
    logging.basicConfig(level=logging.DEBUG if debug else logging.WARNING)


def main() -> None:
    """Run the command `meander`."""
    with SIGNALS.caught():
        app(prog_name="meander")
