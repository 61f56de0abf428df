"""`meander run`: run a flow until a signal, a command or the end of its sources."""

from __future__ import annotations

import contextlib
import logging
from typing import Annotated, Literal

import typer

from meander.app.cli.flow_options import with_settings
from meander.app.cli.options import FlowConnection, FlowModule, connected
from meander.app.cli.views.run import Watch, show_dead_letters
from meander.app.common.signals import SIGNALS, Interrupted
from meander.app.config.options import Options
from meander.app.loading.flow_code import LoadedFlow
from meander.dataflow.metrics.counters import in_words

EXAMPLE = "Example: meander run counts.py --workers 2 --master 'local[4]' --start latest"
commands = typer.Typer()


@commands.command(epilog=EXAMPLE)
@connected
@with_settings
def run(
    context: typer.Context,
    module: FlowModule,
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
                     " processed; without a checkpoint."),
    ] = False,
    fire_timers: Annotated[
        bool,
        typer.Option("--fire-timers", help="With --until-end, fire the timers behind the last"
                     " record too. Later records of their windows are late then."),
    ] = False,
    start: Annotated[
        str,
        typer.Option(help="Where sources start: earliest, latest, milliseconds since 1970, or a"
                     " time with a zone in ISO 8601. A source may have a start of its own."),
    ] = "earliest",
    host: Annotated[
        str, typer.Option(help="This machine's address for the machines of the workers.")
    ] = "127.0.0.1",
    metrics: Annotated[
        bool, typer.Option("--metrics/--no-metrics", help="Serve metrics for Prometheus.")
    ] = True,
    metrics_port: Annotated[
        int,
        typer.Option(min=0, max=65535, help="The port for metrics; 0 takes a free one."),
    ] = 0,
    metrics_host: Annotated[
        str,
        typer.Option(help="The address of this machine for metrics; 0.0.0.0 serves them to all"
                     " others."),
    ] = "127.0.0.1",
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
    fail_on_dead_letters: Annotated[
        bool,
        typer.Option("--fail-on-dead-letters", help="End with exit code 1 where the run has given"
                     " dead letters."),
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
    restart_attempts: Annotated[
        int,
        typer.Option(min=0, help="Failures without a new checkpoint that the flow survives within"
                     " --restart-window."),
    ] = 3,
    restart_backoff: Annotated[
        float,
        typer.Option(min=0.0, help="Seconds before the second of these restarts; they double with"
                     " each further one, up to 60. The first restart comes at once."),
    ] = 1.0,
    restart_window: Annotated[
        float, typer.Option(min=0.0, help="Seconds for which a failure counts.")
    ] = 600.0,
    on_stop: Annotated[
        Literal["checkpoint", "savepoint", "none"],
        typer.Option(help="What the flow takes before SIGTERM ends it. Ctrl-C, or a second signal,"
                     " ends it at once."),
    ] = "checkpoint",
    on_stop_timeout: Annotated[
        float,
        typer.Option(min=0.0, help="Seconds that this may take; then the flow ends without it."),
    ] = 30.0,
    startup_timeout: Annotated[
        float, typer.Option(min=1.0, help="Seconds that the workers may take to start.")
    ] = 60.0,
    policy: Annotated[
        list[str] | None,
        typer.Option(help="A policy that may change the plan of the running flow, besides those of"
                     " its module: NAME\\[:key=value,...]. Repeat it for more.",
                     show_default=False),
    ] = None,
    policies_dry_run: Annotated[
        bool,
        typer.Option("--policies-dry-run", help="Log what policies propose, and change nothing."),
    ] = False,
    policy_interval: Annotated[
        float,
        typer.Option(min=1.0, help="Seconds from one decision of the policies to the next."),
    ] = 10.0,
    plan_cooldown: Annotated[
        float,
        typer.Option(min=0.0, help="Seconds from one plan that comes into force to the start of the"
                     " next."),
    ] = 0.0,
    *,
    to: FlowConnection,
    flow: LoadedFlow,
) -> None:  # fmt: skip
    """Run a flow until Ctrl-C, or with --until-end to the end of its sources.

    JSON lines hold each event of the flow and a summary every ten seconds.

    Exit code 0: the flow ended or meander stop stopped it; 1: it failed, or with
    --fail-on-dead-letters it gave some; 2: Kafka, Spark or an option must be corrected; 130:
    Ctrl-C; 143: SIGTERM.
    """
    # Spark takes a while to import, and the other commands do without.
    from meander.app.driver import driver
    from meander.app.driver.workers import spark_launcher

    output = to.output
    options = Options(
        kafka=to.settings().kafka(), workers=workers, prefix=to.prefix or "", host=host,
        until_end=until_end, fire_timers=fire_timers, start=start, begin_from=begin_from,
        allow_dropped_state=allow_dropped_state, allow_nondeterminism=allow_nondeterminism,
        skip_lost=skip_lost, heartbeat_timeout=heartbeat_timeout, startup_timeout=startup_timeout,
        wait=not output.console.is_terminal if wait is None else wait,
        restart_attempts=restart_attempts, restart_backoff=restart_backoff,
        restart_window=restart_window, on_stop=on_stop, on_stop_timeout=on_stop_timeout,
        metrics_port=metrics_port if metrics else None, metrics_host=metrics_host,
        log_level=logging.getLogger().level,
        policies=tuple(policy or ()), policies_dry_run=policies_dry_run,
        policy_interval=policy_interval, plan_cooldown=plan_cooldown,
    )  # fmt: skip
    chosen = master or f"local[{workers + 1}]"
    # Before Spark takes its time to start.
    spark_launcher.expect_slots(chosen, spark_launcher.slots(chosen), workers)
    with contextlib.ExitStack() as opened:
        watch = opened.enter_context(Watch(output, until_end))
        spark = spark_launcher.spark_context(chosen, f"meander {module.stem}", host)
        try:
            result = driver.run(
                flow, options, lambda: opened.enter_context(spark), watch.show, SIGNALS, watch.wait
            )
        except Interrupted:
            output.say("stopped at once")
            raise
    verb = "stopped" if result.signal else "finished"
    output.say(f"{verb} after {result.seconds:.1f} s: {in_words(result.counters)}")
    if result.dead_letters:
        show_dead_letters(output, result.flow, result.dead_letters)
    if result.signal is not None:
        raise typer.Exit(128 + result.signal)
    if result.dead_letters and fail_on_dead_letters:
        raise typer.Exit(1)
