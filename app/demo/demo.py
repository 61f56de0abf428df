"""The demo: the flights of 2013 through a running flow while half of its bins move, all checked.

Guarantees exit code 0 only if Spark SQL agrees with every result, every record has its results, and
every moved bin was answered for by its old owner before, and by its new one from, its time. Runs on
the broker that it is given, else on a local one, which stays. Cost: about 80 s on two cores.
"""

from __future__ import annotations

import logging
import os
import signal
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack
from pathlib import Path
from uuid import uuid4

from confluent_kafka import KafkaException
from confluent_kafka.admin import NewTopic
from pyspark import SparkContext
from pyspark.sql import SparkSession
from rich.console import Console

from meander.app.bootstrap.bootstrap import stages as spark_stages
from meander.app.common.output import CommandOutput, log_to
from meander.app.common.signals import Interrupted, Signals
from meander.app.config.options import Options
from meander.app.config.settings import BOOTSTRAP, Settings
from meander.app.demo.check import Findings, check
from meander.app.demo.conduct import DemoRun, plan
from meander.app.demo.data import Flights, load, unpack
from meander.app.demo.report import Gauge, Stages, figures, picture, show, show_next_steps
from meander.app.driver import driver
from meander.app.driver.workers import spark_launcher
from meander.app.flows import flights
from meander.app.measurement.latencies import Timeline
from meander.connectors.kafka import client
from meander.connectors.kafka.reachability import expect_reachable
from meander.connectors.local_broker.default import DATA, start_local
from meander.connectors.local_broker.kafka_jars import kafka_jars
from meander.connectors.topics.internal_topics import topic_names
from meander.state.encoding import codec
from meander.state.keys.ids import Bin

WORKERS = 2
PARTITIONS = 4
RATE = 9_000
"""Records per second: the year in 37 seconds."""
RUN_ON = "local[3]"
"""A slot per worker, and one that stays free."""
CHECK_ON = "local[2]"
LOOK = 0.5
"""Seconds between two looks at how far Spark is."""

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


def main(
    settings: Settings | None = None,
    *,
    rate: int = RATE,
    build: Path = Path("build"),
    table: Path | None = None,
) -> int:
    """Run the demo and return the exit code.

    `table` is a CSV file like the package's, which is taken where none is given. Writes demo.json
    and demo.png to `build`. Raises MeanderError where the demo cannot run to its end.
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
    png, json = build / "demo.png", build / "demo.json"
    with ExitStack() as opened, ThreadPoolExecutor(2) as beside:
        context = spark_launcher.spark_context(RUN_ON, "Meander demo", options=_MEMORY)
        spark = beside.submit(opened.enter_context, context)
        with stages.stage("broker", "starts Kafka" if local else "goes to Kafka", "jars") as gauge:
            if local:
                kafka_jars(gauge.show)
            kafka = _LOADED | given.kafka() | ({BOOTSTRAP: start_local(DATA)} if local else {})
            console.print(f"         the broker answers at {kafka[BOOTSTRAP]}")
        rows = table or unpack(build)
        with stages.stage("start", "starts Spark, and loads the flights"):
            records = load(rows, PARTITIONS)
            spark.result()
        what = f"runs the flow on {WORKERS} workers, {rate:,} records/s"
        with stages.stage("run", what, "flights answered") as gauge:
            demo_run, timeline = _run(spark.result, kafka, prefix, records, rate, gauge, beside)
        spark.result().stop()
        what = "has Spark SQL compute every answer, and compares"
        with stages.stage("check", what, "tasks of Spark") as gauge:
            findings = _check(kafka, demo_run, rows, gauge, beside)
    migrations, moves = zip(*demo_run.migrations(timeline.due), strict=True)
    bands, behind = timeline.widened(moves), timeline.backlog(rate)
    with stages.stage("plot", f"writes {png} and {json}"):
        title = f"{findings.records:,} flights through two stateful operators while bins move"
        build.mkdir(parents=True, exist_ok=True)
        picture(timeline, bands, behind, title).savefig(png)
    summary = findings, migrations, timeline.phases(bands), behind
    more = {"workers": WORKERS, "rate": rate, "seconds": stages.seconds}
    json.write_text(figures(*summary, more))
    show(console, *summary)
    show_next_steps(console, kafka[BOOTSTRAP], prefix, local=local)
    return 1 if findings.faults() else 0


def _run(
    spark: Callable[[], SparkContext],
    kafka: dict[str, str],
    prefix: str,
    records: Flights,
    rate: int,
    gauge: Gauge,
    beside: ThreadPoolExecutor,
) -> tuple[DemoRun, Timeline]:
    """Run the flow under load."""
    topics = flights.topics(prefix)
    _create(kafka, *topics)
    # The flow's module reads it, here and on the workers.
    os.environ["MEANDER_FLIGHTS_PREFIX"] = prefix
    signals, steps = Signals(), deque(plan(_owners(), records.times))
    control = topic_names(prefix, flights.flow.name).control
    load_ = records.load(topics[0], rate)
    demo_run = DemoRun(kafka, control, records, load_, topics[1:], steps, signals, gauge.show)
    options = Options(kafka, WORKERS, prefix, log_level=logging.WARNING)
    with signals.caught():
        conducted = beside.submit(demo_run.conduct)
        try:
            result = driver.run(Path(flights.__file__), options, spark, demo_run.hear, signals)
        finally:
            demo_run.over.set()
    if isinstance(conducted.exception(), Interrupted):
        raise Interrupted(result.signal or signal.SIGINT)
    return demo_run, records.timeline(conducted.result())


def _create(kafka: dict[str, str], *topics: str) -> None:
    made = client.admin(kafka).create_topics(
        [NewTopic(topic, PARTITIONS) for topic in topics], operation_timeout=client.REQUEST_TIMEOUT
    )
    for topic, future in made.items():
        try:
            future.result()
        except KafkaException as error:
            raise client.translate(error, f"topic {topic!r}") from None


def _owners() -> list[int]:
    space = flights.flow.space
    return [space.first_owner(Bin(number), WORKERS) for number in range(space.count)]


def _check(
    kafka: dict[str, str],
    demo_run: DemoRun,
    table: Path,
    gauge: Gauge,
    beside: ThreadPoolExecutor,
) -> Findings:
    """Compare, in a session of its own in the JVM that there is."""
    space = flights.flow.space
    builder = SparkSession.builder.master(CHECK_ON).appName("Meander demo: check")
    for name, value in _CHECK.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    try:
        checked = beside.submit(
            check, spark, kafka, (demo_run.load.topic, *demo_run.results), table, _owners(),
            demo_run.moves(), lambda key: space.bin_of(codec.encode_key(key)),
        )  # fmt: skip
        while wait([checked], LOOK).not_done:
            found = spark_stages(spark.sparkContext, None)
            gauge.show(
                sum(one.numCompletedTasks for one in found), sum(one.numTasks for one in found)
            )
        return checked.result()
    finally:
        spark.stop()
