"""The command line: `meander run | bootstrap | status | migrate | rescale | checkpoint |
checkpoints | stop | reset | topics | config | broker | demo`.

Guarantees exit codes: 0 done, 1 the flow or a command failed, 2 something outside has to be put
right (or the command line itself), 128 + n ended by signal n. An expected error is one sentence on
standard error; `--debug` adds the traceback.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

import typer

from meander.app.cli import bootstrap, broker, checkpoints, topics
from meander.app.cli.follow import new_id, submit
from meander.app.cli.options import (
    Bootstrap,
    CommandGroup,
    CommandId,
    Config,
    Connection,
    Flow,
    FlowConnection,
    Set,
    Wait,
    connected,
)
from meander.app.cli.views.migrate import parse_bins, show, show_abort, show_plan
from meander.app.cli.views.rescale import show_staff
from meander.app.cli.views.run import Watch
from meander.app.cli.views.status import fields, tables
from meander.app.common.output import CommandOutput, log_to
from meander.app.common.signals import Interrupted, Signals
from meander.app.config.options import Options
from meander.app.config.settings import Settings
from meander.app.status.overview import overview
from meander.connectors.kafka.client import FIXED
from meander.connectors.topics.internal_topics import topic_names
from meander.connectors.topics.status import StatusReader, StatusRecord
from meander.schemas.control import Abort, Migrate, Rescale
from meander.schemas.errors import SetupError

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
_signals = Signals()


@app.callback()
def common(
    context: typer.Context,
    debug: Annotated[bool, typer.Option(help="Log debug lines, and show tracebacks.")] = False,
) -> None:
    """Stateful streaming on Kafka and Spark whose running plan changes without a stop."""
    context.obj = debug
    logging.basicConfig(level=logging.DEBUG if debug else logging.WARNING)


@app.command(epilog="Example: meander run counts.py --workers 2 --master 'local[4]' --start latest")
@connected
def run(
    context: typer.Context,
    module: Annotated[
        Path, typer.Argument(metavar="FLOW.py", help="The Python file that defines the flow.")
    ],
    workers: Annotated[
        int, typer.Option(min=1, help="Number of workers; each takes one Spark slot.")
    ] = 2,
    master: Annotated[
        str | None,
        typer.Option(help="Spark's master: local\\[n] or spark://host:port. Default: local, with"
                     " one slot more than workers.", show_default=False),
    ] = None,
    until_end: Annotated[
        bool,
        typer.Option("--until-end", help="End once the records that the source topics hold now are"
                     " processed."),
    ] = False,
    start: Annotated[
        str, typer.Option(help="Where sources start: earliest, latest, or milliseconds since 1970.")
    ] = "earliest",
    host: Annotated[
        str, typer.Option(help="This machine's address for the machines of the workers.")
    ] = "127.0.0.1",
    metrics: Annotated[
        bool, typer.Option("--metrics/--no-metrics", help="Serve metrics for Prometheus.")
    ] = True,
    metrics_port: Annotated[
        int,
        typer.Option(min=0, max=65535, help="The port for metrics on 127.0.0.1; 0 takes a free"
                     " one."),
    ] = 0,
    begin_from: Annotated[
        str | None,
        typer.Option("--from", help="Restart from this checkpoint: a savepoint's name or a number."
                     " Later checkpoints are dropped. Default: the newest one.",
                     show_default=False),
    ] = None,
    allow_dropped_state: Annotated[
        bool,
        typer.Option("--allow-dropped-state", help="Drop states and positions of operators and"
                     " sources that the flow no longer has, and in-flight records of operators that"
                     " have another place in it."),
    ] = False,
    allow_nondeterminism: Annotated[
        bool,
        typer.Option("--allow-nondeterminism", help="Continue, with a warning, when replayed"
                     " results differ from results already committed."),
    ] = False,
    skip_lost: Annotated[
        bool,
        typer.Option("--skip-lost", help="Continue with the records left where retention has"
                     " deleted records that the flow was to read; a warning names them."),
    ] = False,
    heartbeat_timeout: Annotated[
        float,
        typer.Option(min=1.0, help="Seconds of silence after which a worker or driver counts as"
                     " dead."),
    ] = 10.0,
    wait: Annotated[
        bool | None,
        typer.Option("--wait/--no-wait", help="Wait until the heartbeat timeout of another driver"
                     " is over, or fail at once. Default: wait when stdout is not a terminal.",
                     show_default=False),
    ] = None,
    startup_timeout: Annotated[
        float, typer.Option(min=1.0, help="Seconds that the workers may take to start.")
    ] = 60.0,
    *,
    to: FlowConnection,
) -> None:  # fmt: skip
    """Run a flow until Ctrl-C, or with --until-end to the end of its sources.

    JSON lines hold each event of the flow and a summary every ten seconds.

    Exit code 0: the flow ended or meander stop stopped it; 1: it failed; 2: Kafka, Spark or an
    option must be corrected; 130: Ctrl-C.
    """
    # Spark takes a while to import, and the other commands do without.
    from meander.app.driver import driver
    from meander.app.driver.workers import spark_launcher

    output = to.output
    log_to(output, context.obj)
    options = Options(
        kafka=to.settings().kafka(), workers=workers, prefix=to.prefix, host=host,
        until_end=until_end, start=start, begin_from=begin_from,
        allow_dropped_state=allow_dropped_state, allow_nondeterminism=allow_nondeterminism,
        skip_lost=skip_lost, heartbeat_timeout=heartbeat_timeout, startup_timeout=startup_timeout,
        wait=not output.console.is_terminal if wait is None else wait,
        metrics_port=metrics_port if metrics else None, log_level=logging.getLogger().level,
    )  # fmt: skip
    chosen = master or f"local[{workers + 1}]"
    # Before Spark takes its time to start.
    spark_launcher.expect_slots(chosen, spark_launcher.slots(chosen), workers)
    with contextlib.ExitStack() as opened:
        watch = opened.enter_context(Watch(output, until_end))
        spark = spark_launcher.spark_context(chosen, f"meander {module.stem}", host)
        try:
            result = driver.run(
                module, options, lambda: opened.enter_context(spark), watch.show, _signals
            )
        except Interrupted:
            output.say("stopped before all workers ran")
            raise
    counters = ", ".join(f"{count:,} {name}" for name, count in sorted(result.counters.items()))
    output.say(
        f"{'stopped' if result.signal else 'finished'} after {result.seconds:.1f} s: {counters}"
    )
    if result.signal is not None:
        raise typer.Exit(128 + result.signal)


app.command(epilog=bootstrap.EXAMPLE)(bootstrap.bootstrap)


@app.command(epilog="Example: meander status counts --json")
@connected
def status(
    flow: Flow,
    whole: Annotated[
        bool,
        typer.Option("--all", help="Read the whole status topic, and show old migrations too."),
    ] = False,
    *,
    to: FlowConnection,
) -> None:
    """Show a flow's workers, frontiers, lag, bins and migrations."""
    output, topic = to.output, topic_names(to.prefix, flow).status
    with contextlib.ExitStack() as opened:
        with output.working("asking Kafka"):
            reader = StatusReader(to.kafka(), topic, flow)
            opened.callback(reader.close)
        seen = overview(flow, _all(reader, output) if whole else reader.recent())
    now = time.time_ns() // 1_000_000
    state = "silent" if seen.silent(now) else seen.state
    if output.as_json:
        output.line(fields(seen, state, now))
    else:
        tables(output, seen, state, now)


def _all(reader: StatusReader, output: CommandOutput) -> Iterator[StatusRecord]:
    with output.bar("events") as progress:
        total = reader.high - reader.low
        yield from progress.track(reader.all(), total, description="reading the status topic")


@app.command(epilog="Example: meander migrate counts --bins 0-127 --worker 1")
@connected
def migrate(
    flow: Flow,
    worker: Annotated[int, typer.Option(min=0, help="The new owner of the bins.")],
    bins: Annotated[
        str | None, typer.Option(help="Bins to move: numbers and ranges such as 0-2,7, or all.")
    ] = None,
    key: Annotated[
        list[str] | None,
        typer.Option(help="A key, as text, whose bin moves; needs --whole-bins; can be repeated."),
    ] = None,
    whole_bins: Annotated[
        bool, typer.Option("--whole-bins", help="Confirm that all keys of these bins move.")
    ] = False,
    at: Annotated[
        int | None,
        typer.Option(
            "--time", help="Move at this logical time, milliseconds since 1970. Default: soon."
        ),
    ] = None,
    strategy: Annotated[
        Literal["batched", "fluid", "all-at-once"],
        typer.Option(
            help="Move bins in rounds with no worker twice in a round, one after another, or all at"
            " one time."
        ),
    ] = "batched",
    precopy: Annotated[
        bool,
        typer.Option(
            "--precopy/--no-precopy", help="Load layers at the new owner before the move, or not."
        ),
    ] = True,
    overlap: Annotated[
        Literal["queue", "reject"],
        typer.Option(help="Without --time: wait while other commands move these bins, or reject."),
    ] = "queue",
    order: Annotated[
        Literal["as-listed", "hottest", "coldest"],
        typer.Option(help="Which bins move first: as listed, or by their recent records."),
    ] = "as-listed",
    operator: Annotated[
        str | None,
        typer.Option(help="Move only the bins of this operator, which must have colocate=False."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show the moves and their rounds.")
    ] = False,
    name: CommandId = None,
    wait: Wait = True,
    *,
    to: FlowConnection,
) -> None:
    """Move bins of keys to a worker while the flow runs.

    Exit code 0: the worker owns all of them; 1: some bins stay, or the command was rejected or
    aborted.
    """
    if (bins is None) == (not key):
        cause = "both --bins and --key are given" if key else "neither --bins nor --key is given"
        raise SetupError("meander migrate", cause, "give one of them, such as --bins 0-2")
    if key and not whole_bins:
        cause = "all keys of a bin move together, so more keys than these would move"
        raise SetupError("--key", cause, "add --whole-bins to confirm, or name --bins")
    command = Migrate.model_construct(
        type="migrate", id=name or new_id(), worker=worker,
        bins=None if bins is None else parse_bins(bins), keys=key, whole_bins=whole_bins,
        time=at, strategy=strategy, precopy=precopy, overlap=overlap, order=order,
        operator=operator, dry_run=dry_run,
    )  # fmt: skip
    submit(command, flow, to, show_plan if dry_run else show if wait else None)


@app.command(epilog="Example: meander abort counts m1")
@connected
def abort(
    flow: Flow,
    command: Annotated[
        str, typer.Argument(help="The id of the command to abort.", show_default=False)
    ],
    name: CommandId = None,
    wait: Wait = True,
    *,
    to: FlowConnection,
) -> None:
    """Abort a command that moves bins: moves under way complete, and all other bins stay.

    Exit code 0: the command has ended; 1: no such command moves bins.
    """
    order = Abort.model_construct(type="abort", id=name or new_id(), command=command)
    submit(order, flow, to, show_abort if wait else None)


@app.command(epilog="Example: meander rescale counts --workers 3")
@connected
def rescale(
    flow: Flow,
    workers: Annotated[int, typer.Option(min=1, help="The new number of workers.")],
    name: CommandId = None,
    wait: Wait = True,
    *,
    to: FlowConnection,
) -> None:
    """Add workers to a running flow, or remove the workers that joined last.

    Exit code 0: all have joined or left; 1: some have not, some got no bins, or the command was
    rejected.
    """
    command = Rescale.model_construct(type="rescale", id=name or new_id(), workers=workers)
    submit(command, flow, to, show_staff if wait else None)


app.command(epilog="Example: meander checkpoint counts --savepoint v1")(checkpoints.checkpoint)
app.command(epilog="Example: meander checkpoints counts --drop v1")(checkpoints.checkpoints)
app.command(epilog="Example: meander stop counts --savepoint v1")(checkpoints.stop)
app.command(epilog="Example: meander reset counts")(checkpoints.reset)


@app.command("config", epilog="Example: meander config --set sasl.username=me")
@connected
def show_config(to: Connection) -> None:
    """Show the settings for Kafka from file, environment and options; secrets are hidden."""
    rows = map(_in_use, to.settings().shown())
    to.output.table("settings", ["name", "value", "from"], [[*row] for row in rows])


def _in_use(row: tuple[str, str, str]) -> tuple[str, str, str]:
    name, given, origin = row
    value = str(FIXED[name]).lower() if name in FIXED else given
    return row if value == given else (name, value, f"Meander, in place of {origin}")


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
    with _signals.caught():
        app(prog_name="meander")
