"""The command line: `meander run | bootstrap | status | migrate | rescale | checkpoint |
checkpoints | stop | reset | topics | config | broker | demo`.

Guarantees exit codes: 0 done, 1 the flow or a command failed, 2 something outside has to be put
right (or the command line itself), 128 + n ended by signal n. What Meander raises on purpose is one
sentence on standard error; `--debug` adds the traceback.
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
from meander.app.cli.follow import give, new_id
from meander.app.cli.options import (
    Bootstrap,
    CommandGroup,
    CommandId,
    Config,
    Flow,
    Json,
    Prefix,
    Set,
    Wait,
)
from meander.app.cli.views.migrate import parse_bins, show, show_abort, show_plan
from meander.app.cli.views.rescale import show_staff
from meander.app.cli.views.run import Watch
from meander.app.cli.views.status import fields, tables
from meander.app.common.output import CommandOutput, log_to
from meander.app.common.signals import Signals
from meander.app.config.cluster import kafka, settings
from meander.app.config.options import Options
from meander.app.config.settings import Settings
from meander.app.status.overview import overview
from meander.connectors.kafka.client import FIXED
from meander.connectors.topics.status import StatusReader, Told
from meander.connectors.topics.topics import names
from meander.schemas.control import Abort, Migrate, Rescale
from meander.schemas.errors import SetupError

app = typer.Typer(
    cls=CommandGroup,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,
    help="Stateful streaming on Kafka and Spark whose running plan changes without a stop.",
    epilog="Begin with: meander broker start",
)
app.add_typer(topics.commands, name="topics")
app.add_typer(broker.commands, name="broker")
_signals = Signals()


@app.callback()
def common(
    context: typer.Context,
    debug: Annotated[bool, typer.Option(help="Log everything, and show tracebacks.")] = False,
) -> None:
    """Stateful streaming on Kafka and Spark whose running plan changes without a stop."""
    context.obj = debug
    logging.basicConfig(level=logging.DEBUG if debug else logging.WARNING)


@app.command(epilog="Example: meander run counts.py --workers 2 --master 'local[4]' --start latest")
def run(
    context: typer.Context,
    module: Annotated[
        Path, typer.Argument(metavar="FLOW.py", help="The Python file that defines the flow.")
    ],
    workers: Annotated[int, typer.Option(min=1, help="How many; each takes one slot.")] = 2,
    master: Annotated[
        str | None,
        typer.Option(help="Spark's master: local\\[n], spark://host:port. Else local, a slot more"
                     " than workers.", show_default=False),
    ] = None,
    until_end: Annotated[
        bool, typer.Option("--until-end", help="End at what the sources' topics hold now.")
    ] = False,
    start: Annotated[
        str, typer.Option(help="Where sources begin: earliest, latest, milliseconds since 1970.")
    ] = "earliest",
    host: Annotated[
        str, typer.Option(help="This machine's address, as the workers' machines reach it.")
    ] = "127.0.0.1",
    metrics: Annotated[
        bool, typer.Option("--metrics/--no-metrics", help="Serve metrics for Prometheus.")
    ] = True,
    metrics_port: Annotated[
        int, typer.Option(min=0, max=65535, help="Where, on 127.0.0.1; 0 is any free port.")
    ] = 0,
    begin_from: Annotated[
        str | None,
        typer.Option("--from", help="Go on from this checkpoint: a savepoint's name, or a number."
                     " What has come after it counts no more. Else from the newest.",
                     show_default=False),
    ] = None,
    allow_dropped_state: Annotated[
        bool,
        typer.Option("--allow-dropped-state", help="Drop what the checkpoint has of operators and"
                     " sources that the flow has no more, and records in flight at what stands"
                     " elsewhere in it now."),
    ] = False,
    allow_nondeterminism: Annotated[
        bool,
        typer.Option("--allow-nondeterminism", help="Go on where the replay gives other results"
                     " than those that are out, exactly once."),
    ] = False,
    skip_lost: Annotated[
        bool,
        typer.Option("--skip-lost", help="Go on with what is left where retention has deleted"
                     " records that the flow was to read; a warning says which."),
    ] = False,
    heartbeat_timeout: Annotated[
        float, typer.Option(min=1.0, help="Seconds of silence after which a member counts as dead.")
    ] = 10.0,
    wait: Annotated[
        bool | None,
        typer.Option("--wait/--no-wait", help="Wait for the end of another driver's heartbeat"
                     " timeout, in place of being refused; so it is anyway where no terminal"
                     " reads.",
                     show_default=False),
    ] = None,
    startup_timeout: Annotated[
        float, typer.Option(min=1.0, help="Seconds that workers may take to start.")
    ] = 60.0,
    prefix: Prefix = "",
    bootstrap: Bootstrap = None,
    set_: Set = None,
    config: Config = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Run a flow until Ctrl-C, or with --until-end to the end of its sources.

    JSON lines hold each event of the flow and a summary every ten seconds.

    Exit code 0: the flow ended or meander stop stopped it; 1: it failed; 2: Kafka, Spark or an
    option must be corrected; 130: Ctrl-C.
    """
    # Spark takes a while to import, and the other commands do without.
    from meander.app.driver import driver
    from meander.app.driver.workers import spark_launcher

    output = CommandOutput.of(as_json)
    log_to(output, context.obj)
    options = Options(
        kafka=settings(config, set_, bootstrap).kafka(), workers=workers, prefix=prefix, host=host,
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
        result = driver.run(
            module, options, lambda: opened.enter_context(spark), watch.show, _signals
        )
    counters = ", ".join(f"{count:,} {name}" for name, count in sorted(result.counters.items()))
    output.say(
        f"{'ended' if result.signal else 'finished'} after {result.seconds:.1f} s: {counters}"
    )
    if result.signal is not None:
        raise typer.Exit(128 + result.signal)


app.command(epilog=bootstrap.EXAMPLE)(bootstrap.bootstrap)


@app.command(epilog="Example: meander status counts --json")
def status(
    flow: Flow,
    whole: Annotated[
        bool,
        typer.Option("--all", help="Migrations that ended long ago too: reads the whole topic."),
    ] = False,
    prefix: Prefix = "",
    bootstrap: Bootstrap = None,
    set_: Set = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Show a flow's workers, frontiers, lag, bins and migrations."""
    output, topic = CommandOutput.of(as_json), names(prefix, flow).status
    with contextlib.ExitStack() as opened:
        with output.working("asking Kafka"):
            reader = StatusReader(kafka(config, set_, bootstrap), topic, flow)
            opened.callback(reader.close)
        seen = overview(flow, _all(reader, output) if whole else reader.recent())
    now = time.time_ns() // 1_000_000
    state = "silent" if seen.silent(now) else seen.state
    if output.as_json:
        output.line(fields(seen, state, now))
    else:
        tables(output, seen, state, now)


def _all(reader: StatusReader, output: CommandOutput) -> Iterator[Told]:
    with output.bar("events") as progress:
        total = reader.high - reader.low
        yield from progress.track(reader.all(), total, description="reading the status topic")


@app.command(epilog="Example: meander migrate counts --bins 0-127 --worker 1")
def migrate(
    flow: Flow,
    worker: Annotated[int, typer.Option(min=0, help="Who owns the bins from then on.")],
    bins: Annotated[
        str | None, typer.Option(help="Numbers and ranges such as 0-2,7, or all.")
    ] = None,
    key: Annotated[
        list[str] | None,
        typer.Option(help="A key, as text, whose bin moves; needs --whole-bins; can be repeated."),
    ] = None,
    whole_bins: Annotated[
        bool, typer.Option("--whole-bins", help="Yes, all keys of these keys' bins.")
    ] = False,
    at: Annotated[
        int | None,
        typer.Option("--time", help="From this time on, milliseconds since 1970; else at once."),
    ] = None,
    strategy: Annotated[
        Literal["batched", "fluid", "all-at-once"],
        typer.Option(
            help="In rounds that no worker takes part in twice; bin after bin; or all at one time."
        ),
    ] = "batched",
    precopy: Annotated[
        bool,
        typer.Option(
            "--precopy/--no-precopy", help="Fetch ahead what lies on the state topic, or not."
        ),
    ] = True,
    overlap: Annotated[
        Literal["queue", "reject"],
        typer.Option(help="Without --time: what to do while other commands move these bins."),
    ] = "queue",
    order: Annotated[
        Literal["as-listed", "hottest", "coldest"],
        typer.Option(help="Which bins move first: as named, or by their records of late."),
    ] = "as-listed",
    operator: Annotated[
        str | None,
        typer.Option(help="Of this operator, which moves alone; else of all that do not."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would be done, in which rounds.")
    ] = False,
    name: CommandId = None,
    wait: Wait = True,
    prefix: Prefix = "",
    bootstrap: Bootstrap = None,
    set_: Set = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Move bins of keys to a worker while the flow runs.

    Exit code 0: all of them are there; 1: some stay, or it was rejected or aborted.
    """
    output = CommandOutput.of(as_json)
    if (bins is None) == (not key):
        cause = "it has both --bins and --key" if key else "it has neither --bins nor --key"
        raise SetupError("meander migrate", cause, "say what moves by one of them: --bins 0-2")
    if key and not whole_bins:
        cause = "all keys of a bin move together, so more would move than the keys named"
        raise SetupError("--key", cause, "add --whole-bins if they may, or name --bins")
    command = Migrate.model_construct(
        type="migrate", id=name or new_id(), worker=worker,
        bins=None if bins is None else parse_bins(bins), keys=key, whole_bins=whole_bins,
        time=at, strategy=strategy, precopy=precopy, overlap=overlap, order=order,
        operator=operator, dry_run=dry_run,
    )  # fmt: skip
    cluster = kafka(config, set_, bootstrap)
    shown = show_plan if dry_run else show if wait else None
    give(command, cluster, prefix, flow, output, shown)


@app.command(epilog="Example: meander abort counts m1")
def abort(
    flow: Flow,
    command: Annotated[str, typer.Argument(help="Its id.", show_default=False)],
    name: CommandId = None,
    wait: Wait = True,
    prefix: Prefix = "",
    bootstrap: Bootstrap = None,
    set_: Set = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """End a command that moves bins once what moves just now has moved; the rest stays.

    Exit code 0: it has ended; 1: there is nothing to end.
    """
    order = Abort.model_construct(type="abort", id=name or new_id(), command=command)
    cluster = kafka(config, set_, bootstrap)
    output = CommandOutput.of(as_json)
    give(order, cluster, prefix, flow, output, show_abort if wait else None)


@app.command(epilog="Example: meander rescale counts --workers 3")
def rescale(
    flow: Flow,
    workers: Annotated[int, typer.Option(min=1, help="How many the flow has from then on.")],
    name: CommandId = None,
    wait: Wait = True,
    prefix: Prefix = "",
    bootstrap: Bootstrap = None,
    set_: Set = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Have workers join a running flow, or those leave it that joined last.

    Exit code 0: all have come or gone; 1: not all, or without a share, or it was rejected.
    """
    output = CommandOutput.of(as_json)
    command = Rescale.model_construct(type="rescale", id=name or new_id(), workers=workers)
    cluster = kafka(config, set_, bootstrap)
    give(command, cluster, prefix, flow, output, show_staff if wait else None)


app.command(epilog="Example: meander checkpoint counts --savepoint v1")(checkpoints.checkpoint)
app.command(epilog="Example: meander checkpoints counts --drop v1")(checkpoints.checkpoints)
app.command(epilog="Example: meander stop counts --savepoint v1")(checkpoints.stop)
app.command(epilog="Example: meander reset counts")(checkpoints.reset)


@app.command("config", epilog="Example: meander config --set sasl.username=me")
def show_config(
    bootstrap: Bootstrap = None, set_: Set = None, config: Config = None, as_json: Json = False
) -> None:
    """Show Kafka's settings as they result from file, environment and flags; secrets are hidden."""
    rows = map(_in_use, settings(config, set_, bootstrap).shown())
    CommandOutput.of(as_json).table("settings", ["name", "value", "from"], [[*row] for row in rows])


def _in_use(row: tuple[str, str, str]) -> tuple[str, str, str]:
    name, given, origin = row
    value = str(FIXED[name]).lower() if name in FIXED else given
    return row if value == given else (name, value, f"Meander, whatever is given ({origin})")


@app.command(epilog="Example: meander demo --bootstrap broker:9092 --rate 2000")
def demo(
    rate: Annotated[
        int | None,
        typer.Option(min=1, help="Records per second; else its own.", show_default=False),
    ] = None,
    bootstrap: Bootstrap = None,
    set_: Set = None,
    config: Config = None,
) -> None:
    """Run real flights through Kafka and Spark while bins move, and check every answer."""
    # Here, because it brings pandas, Spark and matplotlib, which no other command waits for.
    from meander.app.demo.demo import RATE
    from meander.app.demo.demo import main as run_demo

    # Without the local broker that may run: the demo takes that one, or starts it.
    given = Settings.load(config, os.environ, set_ or [], bootstrap)
    raise typer.Exit(run_demo(given, rate=rate or RATE))


def main() -> None:
    """What the command `meander` starts."""
    with _signals.caught():
        app(prog_name="meander")
