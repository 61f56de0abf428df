"""The command line: `meander run | bootstrap | status | migrate | rescale | change | plan |
checkpoint | checkpoints | stop | reset | new | dev | dead-letters | trace | sql | topics |
config | broker | demo`.

Guarantees exit codes: 0 done, 1 the flow or a command failed, 2 something outside has to be put
right (or the command line itself), 128 + n ended by signal n. An expected error is one sentence on
standard error; `--debug` adds the traceback.
"""

from __future__ import annotations

import logging
import os
from typing import Annotated

import typer

from meander.app.cli import (
    bootstrap,
    broker,
    change,
    checkpoints,
    config,
    dead_letters,
    dev,
    migrate,
    new,
    plan,
    rescale,
    run,
    sql,
    status,
    topics,
    trace,
)
from meander.app.cli.options import Bootstrap, CommandGroup, Config, Set
from meander.app.config.settings import Settings

app = typer.Typer(
    cls=CommandGroup,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,
    help="Stateful streaming on Kafka and Spark whose running plan changes without a stop.",
    epilog="Start with: meander broker start",
)
app.add_typer(topics.commands, name="topics")
app.add_typer(broker.commands, name="broker")
app.add_typer(trace.commands, name="trace")
app.add_typer(plan.commands, name="plan")
app.add_typer(dead_letters.commands, name="dead-letters")


@app.callback()
def common(
    context: typer.Context,
    debug: Annotated[bool, typer.Option(help="Log debug lines, and show tracebacks.")] = False,
) -> None:
    """Stateful streaming on Kafka and Spark whose running plan changes without a stop."""
    context.obj = debug
    logging.basicConfig(level=logging.DEBUG if debug else logging.WARNING)


app.command(epilog=run.EXAMPLE)(run.run)
app.command(epilog=bootstrap.EXAMPLE)(bootstrap.bootstrap)
app.command(epilog=status.EXAMPLE)(status.status)
app.command(epilog=migrate.EXAMPLE)(migrate.migrate)
app.command(epilog=migrate.ABORT_EXAMPLE)(migrate.abort)
app.command(epilog=rescale.EXAMPLE)(rescale.rescale)
app.command(epilog=change.EXAMPLE)(change.change)
app.command(epilog="Example: meander checkpoint counts --savepoint v1")(checkpoints.checkpoint)
app.command(epilog="Example: meander checkpoints counts --drop v1")(checkpoints.checkpoints)
app.command(epilog="Example: meander stop counts --savepoint v1")(checkpoints.stop)
app.command(epilog="Example: meander reset counts")(checkpoints.reset)
app.command(epilog=sql.EXAMPLE)(sql.sql)
app.command(epilog=new.EXAMPLE)(new.new)
app.command(epilog=dev.EXAMPLE)(dev.dev)
app.command(epilog=config.EXAMPLE)(config.config)


@app.command(epilog="Example: meander demo --bootstrap broker:9092 --rate 2000")
def demo(
    rate: Annotated[
        int | None,
        typer.Option(min=1, help="Records per second.", show_default=False),
    ] = None,
    bootstrap: Bootstrap = None,
    set_: Set = None,
    config: Config = None,
) -> None:
    """Send real flights through Kafka and Spark while bins move, and check each result."""
    # Here, because it brings pandas, Spark and matplotlib, which no other command waits for.
    from meander.app.demo.demo import RATE
    from meander.app.demo.demo import main as run_demo

    # Without the local broker that may run: the demo takes that one, or starts it.
    given = Settings.load(config, os.environ, set_ or [], bootstrap)
    raise typer.Exit(run_demo(given, rate=rate or RATE))


def main() -> None:
    """Run the command `meander`."""
    with run.SIGNALS.caught():
        app(prog_name="meander")
