"""`meander bootstrap`: the states that a flow starts from, out of files that Spark reads."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.progress import Progress, TaskID

from meander.app.cli.options import Bootstrap, Config, Json, Prefix, Set
from meander.app.common.output import CommandOutput, log_to, size
from meander.app.config.cluster import settings
from meander.app.config.options import Options
from meander.schemas.errors import SetupError

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import DataFrame

EXAMPLE = "Example: meander bootstrap counts.py --operator count --data states.parquet"
# Unlike a flow's workers, tasks may share a process: half a second each.
SPARK = {"spark.python.worker.reuse": "true"}
Kind = Literal["parquet", "json", "csv", "orc"]
_KINDS: dict[str, Kind] = {
    ".parquet": "parquet", ".json": "json", ".jsonl": "json", ".csv": "csv", ".orc": "orc",
}  # fmt: skip


def bootstrap(
    context: typer.Context,
    module: Annotated[
        Path, typer.Argument(metavar="FLOW.py", help="The Python file that defines the flow.")
    ],
    operator: Annotated[str, typer.Option(help="The stateful operator whose states these are.")],
    data: Annotated[str, typer.Option(help="A file or folder that Spark can read.")],
    kind: Annotated[
        Kind | None,
        typer.Option("--format", help="Of the data; else by its ending, or parquet.",
                     show_default=False),
    ] = None,
    key: Annotated[
        str, typer.Option(help="The column of keys; several, with commas between, are a tuple.")
    ] = "key",
    state: Annotated[
        str, typer.Option(help="That of states; a struct, or several columns, are a tuple.")
    ] = "state",
    replace: Annotated[
        bool, typer.Option("--replace", help="Drop the states that were written before.")
    ] = False,
    master: Annotated[str, typer.Option(help="Spark's master.")] = "local[*]",
    host: Annotated[
        str, typer.Option(help="This machine's address, as Spark's machines reach it.")
    ] = "127.0.0.1",
    prefix: Prefix = "",
    bootstrap: Bootstrap = None,
    set_: Set = None,
    config: Config = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Write states from a table, a row per key, for a flow to start from."""
    # Spark takes a while to import, and the other commands do without.
    from meander.app.bootstrap.bootstrap import bootstrap as write
    from meander.app.driver.workers import spark_launcher

    output = CommandOutput.of(as_json)
    log_to(output, context.obj)
    kafka = settings(config, set_, bootstrap).kafka()
    options = Options(kafka, prefix=prefix, host=host, log_level=logging.getLogger().level)
    spark_launcher.expect_master(master)
    with contextlib.ExitStack() as opened:
        steps = StepBars(opened.enter_context(output.bar("tasks")))
        spark = spark_launcher.spark_context(master, f"meander bootstrap {operator}", host, SPARK)
        written = write(
            lambda: _read(opened.enter_context(spark), data, kind), module, operator, options,
            key=_names(key), state=_names(state), replace=replace, progress=steps.show,
        )  # fmt: skip
    if output.as_json:
        output.line(dataclasses.asdict(written))
    rate = written.keys / written.seconds
    output.say(
        f"checkpoint {written.checkpoint}: {written.keys:,} keys in {written.bins:,} bins,"
        f" {size(written.bytes)}, after {written.seconds:.1f} s ({rate:,.0f} keys/s)"
    )


class StepBars:
    """A bar for each of Spark's steps."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._bars: dict[int, TaskID] = {}

    def show(self, step: int, done: int, total: int) -> None:
        """How far Spark is."""
        if step not in self._bars:
            self._bars[step] = self._progress.add_task(f"step {step}", total=total)
            for bar in [bar for number, bar in self._bars.items() if number < step]:
                task = next(task for task in self._progress.tasks if task.id == bar)
                self._progress.update(bar, completed=task.total)
        self._progress.update(self._bars[step], completed=done)


def _read(context: SparkContext, data: str, kind: Kind | None) -> DataFrame:
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    from meander.app.driver.workers.spark_launcher import cause

    reader = SparkSession(context).read.option("header", "true").option("inferSchema", "true")
    chosen = kind or _KINDS.get(Path(data).suffix, "parquet")
    try:
        return reader.format(chosen).load(data)
    except PySparkException as error:
        raise SetupError(
            f"data {data!r}", cause(str(error)), "correct --data, or name its --format"
        ) from error


def _names(given: str) -> str | list[str]:
    return given.split(",") if "," in given else given
