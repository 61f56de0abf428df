"""`meander bootstrap`: write the initial states of a flow from files that Spark reads."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.progress import Progress, TaskID

from meander.app.cli.options import FlowConnection, FlowModule, connected
from meander.app.common.output import log_to, size
from meander.app.config.options import Options
from meander.app.loading.flow_code import load
from meander.schemas.errors import SetupError

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import DataFrame

EXAMPLE = "Example: meander bootstrap counts.py --operator count --data states.parquet"
commands = typer.Typer()
# Unlike a flow's workers, tasks may share a process, half a second each, and run where data is not.
SPARK = {"spark.python.worker.reuse": "true", "spark.locality.wait": "3s"}
Kind = Literal["parquet", "json", "csv", "orc"]
_KINDS: dict[str, Kind] = {
    ".parquet": "parquet", ".json": "json", ".jsonl": "json", ".csv": "csv", ".orc": "orc",
}  # fmt: skip


@commands.command(epilog=EXAMPLE)
@connected
def bootstrap(
    context: typer.Context,
    module: FlowModule,
    operator: Annotated[str, typer.Option(help="The stateful operator that gets the states.")],
    data: Annotated[str, typer.Option(help="A file or folder that Spark can read.")],
    kind: Annotated[
        Kind | None,
        typer.Option("--format", help="Format of the data. Default: by the file name, else"
                     " parquet.", show_default=False),
    ] = None,
    key: Annotated[
        str, typer.Option(help="The column of keys; several columns (a,b) form a tuple.")
    ] = "key",
    state: Annotated[
        str, typer.Option(help="The column of states; a struct or several columns form a tuple.")
    ] = "state",
    replace: Annotated[
        bool, typer.Option("--replace", help="Drop the states of an earlier bootstrap.")
    ] = False,
    master: Annotated[str, typer.Option(help="Spark's master.")] = "local[*]",
    host: Annotated[
        str, typer.Option(help="This machine's address for the machines of Spark.")
    ] = "127.0.0.1",
    *,
    to: FlowConnection,
) -> None:  # fmt: skip
    """Write initial states of a flow from a table with one row per key."""
    # Spark takes a while to import, and the other commands do without.
    from meander.app.bootstrap.bootstrap import bootstrap as write
    from meander.app.driver.workers import spark_launcher

    output = to.output
    log_to(output, context.obj)
    kafka = to.settings().kafka()
    prefix = to.prefix_of(load(module).flow.name)
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
    """A progress bar for each step of Spark."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._bars: dict[int, TaskID] = {}

    def show(self, step: int, done: int, total: int) -> None:
        """Show how many tasks of a step are done."""
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
