"""The demo: the flights of 2013 through a running flow while half of its bins move, all checked.

Guarantees exit code 0 only if Spark SQL agrees with every result, every record has its results, and
every moved bin was answered for by its old owner before, and by its new one from, its time. Runs on
the broker that it is given, else on a local one, which stays. Cost: about 80 s on two cores.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from confluent_kafka import KafkaException
from confluent_kafka.admin import NewTopic
from pyspark import SparkContext
from pyspark.sql import SparkSession
from rich.console import Console

from meander.app.common.output import CommandOutput, log_to
from meander.app.common.signals import Interrupted, Signals
from meander.app.config.options import Options
from meander.app.config.settings import BOOTSTRAP, Settings
from meander.app.demo import check, commands, next_steps, report
from meander.app.demo.conduct import DemoRun, conducting
from meander.app.demo.data import unpack
from meander.app.demo.feed import Clocked, FeedPlan, feeding
from meander.app.demo.latency import Band, backlog, by_phase, widened
from meander.app.demo.plot import picture
from meander.app.demo.stages import Gauge, Stages, counting_tasks
from meander.app.driver import driver
from meander.app.driver.workers import spark_launcher
from meander.app.flows import flights
from meander.connectors.kafka import client
from meander.connectors.kafka.reachability import expect_reachable
from meander.connectors.local_broker.default import DATA, start_local
from meander.connectors.local_broker.kafka_jars import kafka_jars
from meander.connectors.topics.topics import names
from meander.dataflow.records.batch import Int64s
from meander.state.encoding import codec
from meander.state.keys.bins import BinSpace
from meander.state.keys.ids import Bin

WORKERS = 2
PARTITIONS = 4
RATE = 9_000
"""Records per second: the year in 37 seconds."""
RUN_ON = "local[3]"
"""A slot per worker, and one that stays free."""
CHECK_ON = "local[2]"

_LOADED = {"linger.ms": "5"}
"""At this rate a few milliseconds' records share a request: the broker takes a quarter of a core
then, and not more than half of one."""
_MEMORY = {"spark.driver.memory": "2g"}
"""For the check, which holds most of what it reads; the flow's state is not in the JVM."""
_CHECK = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # Unlike a flow's workers, its readers may follow each other in one process.
    "spark.python.worker.reuse": "true",
    # As many tasks as there are partitions to read; none is so large that it had to be split.
    "spark.sql.shuffle.partitions": str(PARTITIONS),
    "spark.sql.adaptive.enabled": "false",
    # What is kept is read twice at once, and fits.
    "spark.sql.inMemoryColumnarStorage.compressed": "false",
}


@dataclass(frozen=True, slots=True)
class Ran:
    """What the run left behind."""

    topics: tuple[str, str, str]
    commands: commands.DemoCommands
    times: Int64s
    clocked: Clocked


def main(
    settings: Settings | None = None,
    *,
    rate: int = RATE,
    build: Path = Path("build"),
    table: Path | None = None,
    hold: float = 0.0,
) -> int:
    """Run the demo; the exit code.

    `table` is a CSV file like the package's, which is taken where none is given. With few records
    the flow may be through before its bins have moved; `hold` is the share of them, at the end,
    that is sent only when all commands are completed (under a third, as a command waits for the
    data's second). Writes demo.json and demo.png to `build`. Raises MeanderError where the demo
    cannot run to its end.
    """
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=100)
    log_to(CommandOutput(console, as_json=False), debug=False)
    stages = Stages(console)
    given = settings or Settings.load(None, os.environ)
    local = given.values[BOOTSTRAP].origin == "default"
    if not local:
        expect_reachable(given.kafka())
    prefix = f"demo-{uuid4().hex[:6]}."
    png, figures = build / "demo.png", build / "demo.json"
    with _starting_spark() as spark:
        with stages.stage("broker", "starts Kafka" if local else "goes to Kafka") as gauge:
            if local:
                kafka_jars(lambda count, total: gauge.show(count, total, "jars of Kafka fetched"))
            kafka = _LOADED | given.kafka() | ({BOOTSTRAP: start_local(DATA)} if local else {})
            console.print(f"         the broker answers at {kafka[BOOTSTRAP]}")
        rows = table or unpack(build)
        ran = _run(spark, stages, kafka, prefix, rows, rate, hold)
        with stages.stage(
            "check", "has Spark SQL compute every answer anew, and compares"
        ) as gauge:
            findings = _check(kafka, ran, rows, gauge)
        due, arrived = ran.clocked.due, ran.clocked.arrived
        migrations = ran.commands.migrations(commands.reached(ran.times, due))
        moves = [Band(f"{m.id}: {m.bins} bins, {m.strategy}", *m.wall) for m in migrations]
        bands, behind = widened(due, arrived, moves), backlog(due, arrived, rate)
        latencies = by_phase(due, arrived, bands)
        with stages.stage("plot", f"writes {png} and {figures}"):
            title = f"{findings.records:,} flights through two stateful operators while bins move"
            build.mkdir(parents=True, exist_ok=True)
            picture(due, arrived, bands, latencies, behind, title).savefig(png)
    outcome = report.Outcome(WORKERS, rate, findings, migrations, latencies, behind, stages.seconds)
    report.write_json(figures, outcome)
    report.show(console, outcome)
    next_steps.show(console, kafka[BOOTSTRAP], prefix, local=local)
    return 1 if findings.faults() else 0


@contextlib.contextmanager
def _starting_spark() -> Iterator[Callable[[], SparkContext]]:
    """Starts Spark beside what the block does first, and waits for it when it is called.

    The JVM stays until the block ends.
    """
    with contextlib.ExitStack() as opened, ThreadPoolExecutor(1) as beside:
        context = spark_launcher.spark_context(RUN_ON, "Meander demo", options=_MEMORY)
        yield beside.submit(opened.enter_context, context).result


def _run(
    starting: Callable[[], SparkContext],
    stages: Stages,
    kafka: dict[str, str],
    prefix: str,
    table: Path,
    rate: int,
    hold: float,
) -> Ran:
    """Run the flow under load."""
    topics = flights.topics(prefix)
    _create(kafka, topics)
    # The flow's module reads it, here and on the workers.
    os.environ["MEANDER_FLIGHTS_PREFIX"] = prefix
    load = FeedPlan(table, kafka, *topics, PARTITIONS, rate, hold)
    signals = Signals()
    with feeding(load) as feed:
        with stages.stage("start", "starts Spark, and loads the flights"):
            times, spark = feed.loaded(), starting()
        asked = commands.DemoCommands(kafka, names(prefix, flights.flow.name))
        steps = deque(commands.plan(_owners(flights.flow.space), times))
        options = Options(kafka, WORKERS, prefix, log_level=logging.WARNING)
        what = f"runs the flow on {WORKERS} workers, {rate:,} records/s"
        with stages.stage("run", what) as gauge, signals.caught():
            total = len(times)
            conductor = DemoRun(feed, asked, steps, total, load.free(total), signals, gauge)
            with conducting(conductor):
                module = Path(flights.__file__)
                result = driver.run(module, options, lambda: spark, asked.hear, signals)
        if conductor.clocked is None:
            raise Interrupted(result.signal or signal.SIGTERM)
    spark.stop()
    return Ran(topics, asked, times, conductor.clocked)


def _create(kafka: dict[str, str], topics: Sequence[str]) -> None:
    admin = client.admin(kafka)
    made = admin.create_topics(
        [NewTopic(topic, PARTITIONS) for topic in topics], operation_timeout=client.ANSWER
    )
    for topic, future in made.items():
        try:
            future.result()
        except KafkaException as error:
            raise client.translate(error, f"topic {topic!r}") from None


def _owners(space: BinSpace) -> list[int]:
    return [space.first_owner(Bin(number), WORKERS) for number in range(space.count)]


def _check(kafka: dict[str, str], ran: Ran, table: Path, gauge: Gauge) -> check.Findings:
    """Compare, in a session of its own in the JVM that there is."""
    space = flights.flow.space
    builder = SparkSession.builder.master(CHECK_ON).appName("Meander demo: check")
    for name, value in _CHECK.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    try:
        with counting_tasks(spark, gauge):
            return check.check(
                spark,
                kafka,
                ran.topics,
                table,
                _owners(space),
                ran.commands.moves(),
                lambda key: space.bin_of(codec.encode_key(key)),
            )
    finally:
        spark.stop()
