"""A flow's history: states out of a Spark DataFrame, as the layers that the flow starts from.

Guarantees that a flow starts from all of them or from none: they count once the checkpoint that
names them is on its topic, which is written last. The flow cannot run meanwhile. What a bootstrap
has written that was refused, or whose Spark job failed, is taken off the state topic again; what
one that was killed or interrupted has, stays there and is never read. Memory is Spark's, which
sorts on disk.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from py4j.protocol import Py4JError
from pyspark import SparkContext, SparkStageInfo
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, Row, functions
from pyspark.sql.types import BinaryType

from meander.app.bootstrap.tasks import ENTRIES, LAYERS, Job, encode, write
from meander.app.common.clock import SystemClock
from meander.app.config.options import Options
from meander.app.driver.lease import heartbeat_seconds, hold_lease, run_with_heartbeat
from meander.app.driver.workers import spark_launcher
from meander.app.flow.preflight import PreparedFlow, environ, prepare
from meander.app.protocol.messages import Failure
from meander.app.recovery.checkpoint_index import CheckpointIndex, expect_retained
from meander.app.recovery.decision_log import to_bytes
from meander.app.recovery.restart import read_decisions
from meander.app.status.metrics import MetricsCollector
from meander.app.status.publisher import FlowStatus, Show
from meander.connectors.topics import checkpoints, tombstones
from meander.connectors.topics.control import DecisionTopic
from meander.dataflow.api.nodes import KeyedNode
from meander.dataflow.checkpoint.compatibility import expect_fits
from meander.dataflow.checkpoint.initial_state import Initial
from meander.dataflow.control.decisions import Takes
from meander.schemas.errors import MeanderError, SetupError
from meander.schemas.log_lines import LineLogger
from meander.state.checkpoint.checkpoint import BEGINNING, Checkpoint
from meander.state.layers.manifest import Manifest

Names = str | Sequence[str]
"""A column, or several that are taken together as a tuple."""
Progress = Callable[[int, int, int], None]
"""Takes the number of Spark's step, how many of its tasks are done, and of how many."""

LOOK = 0.25
"""Seconds between two looks at how far Spark is."""
ENDING = 10.0
"""Seconds that the other tasks of a job which has failed get to end."""

log = LineLogger(__name__)


@dataclass(frozen=True, slots=True)
class Bootstrapped:
    """What has been written."""

    checkpoint: int
    """Its number."""
    keys: int
    bytes: int
    """On the state topic."""
    bins: int
    """That hold a key."""
    seconds: float


def bootstrap(
    frame: DataFrame | Callable[[], DataFrame],
    module: str | Path,
    operator: str,
    options: Options,
    *,
    key: Names = "key",
    state: Names = "state",
    replace: bool = False,
    progress: Progress = lambda *_: None,
    show: Show = lambda _: None,
) -> Bootstrapped:
    """Write the states that an operator of a flow's module starts from.

    `frame` has a row per key, or makes what has, once the flow has been checked. States of other
    operators that were written before stay; with `replace` those of this one go. Raises
    MeanderError, SetupError where something has to be put right.
    """
    prepared = prepare(Path(module), dataclasses.replace(options, workers=0))
    node = _node(prepared, operator)
    with hold_lease(prepared, show, MetricsCollector()) as (prepared, told):
        before = _newest(prepared)
        kept = _kept(before, prepared, operator, replace)
        every = heartbeat_seconds(prepared.options)
        made = (
            frame
            if isinstance(frame, DataFrame)
            else run_with_heartbeat(frame, told, _idle, every, None)
        )
        columns = _columns(made, node, key, state)
        began = time.monotonic()
        manifests = _write(columns, _job(prepared, node, made), told, progress)
        number = 1 if before is None else before.number + 1
        _publish(Checkpoint(
            number, prepared.execution, prepared.plan.flow.space, SystemClock().now_ms(),
            (*kept, *manifests),
        ), before, prepared)  # fmt: skip
        seconds = time.monotonic() - began
        told.finished({})
    layers = [layer for manifest in manifests for layer in manifest.layers]
    keys = sum(layer.count for layer in layers)
    size = sum(place.size for layer in layers for place in layer.chunks)
    return Bootstrapped(number, keys, size, len(manifests), seconds)


def _idle() -> None:
    """Nothing is to be looked at."""


def _node(prepared: PreparedFlow, operator: str) -> KeyedNode:
    known = {keyed.name: keyed for keyed in prepared.plan.keyed}
    if operator not in known:
        names = ", ".join(map(repr, known)) or "none at all"
        raise SetupError(
            f"flow {prepared.flow!r}",
            f"it has no operator {operator!r} that keeps state",
            f"name one of those that do: {names}",
        )
    return known[operator]


def _newest(prepared: PreparedFlow) -> Checkpoint | None:
    settings, names = prepared.options.kafka, prepared.names
    with checkpoints.reading(settings, names) as there:
        found = there.newest()
    if found is None:
        known = CheckpointIndex.of(read_decisions(settings, names.decisions))
        expect_retained(known, prepared.flow, names.checkpoints)
        return None
    return found[1]


def _kept(
    before: Checkpoint | None, prepared: PreparedFlow, operator: str, replace: bool
) -> tuple[Manifest, ...]:
    """What the flow starts from besides. Raises SetupError where there is something in the way."""
    if before is None:
        return ()
    if before.cut != BEGINNING:
        raise SetupError(
            f"flow {prepared.flow!r}",
            f"it has run: its checkpoint {before.number} says how far, and new states would not fit"
            " what has been read",
            f"forget that with meander reset {prepared.flow}, to have it start from states alone",
        )
    if not replace:
        expect_fits(before, prepared.plan)
        if operator in before.operators:
            raise SetupError(
                f"flow {prepared.flow!r}",
                f"its checkpoint {before.number} holds states of {operator!r} already",
                "add --replace to have these in their stead",
            )
    if before.space != prepared.plan.flow.space:
        return ()
    others = {keyed.name for keyed in prepared.plan.keyed} - {operator}
    return tuple(manifest for manifest in before.manifests if manifest.operator in others)


def _publish(checkpoint: Checkpoint, before: Checkpoint | None, prepared: PreparedFlow) -> None:
    """From here on the flow starts from it, and from no layer that it does not name."""
    kafka, names = prepared.options.kafka, prepared.names
    checkpoints.append(kafka, names, checkpoint)
    if before is None:
        with contextlib.closing(DecisionTopic(kafka, names.decisions)) as decisions:
            decisions.write(to_bytes(prepared.execution, Takes(checkpoint.cut.time)))
    else:
        gone = set(before.manifests).difference(checkpoint.manifests)
        checkpoints.erase(kafka, names.state, gone)
        checkpoints.tombstone(kafka, names.in_flight, before.parts)


def _columns(frame: DataFrame, node: KeyedNode, key: Names, state: Names) -> DataFrame:
    """The two columns. Raises SetupError where there are none such."""
    chosen = frame.select(
        _column(frame, key, "key").alias("key"), _column(frame, state, "state").alias("state")
    )
    kind = chosen.schema["state"].dataType
    if Initial(node).has_own_codec and not isinstance(kind, BinaryType):
        raise SetupError(
            f"operator {node.name!r}",
            f"it has a codec of its own, and the states are of type {kind.simpleString()}",
            "give them as binary, as the codec has encoded them",
        )
    return chosen


def _column(frame: DataFrame, names: Names, what: str) -> Column:
    wanted = [names] if isinstance(names, str) else list(names)
    for name in wanted:
        if name not in frame.columns:
            raise SetupError(
                f"column {name!r}",
                f"the data has none of that name, only {', '.join(frame.columns)}",
                f"name that of the {what}: --{what}",
            )
    columns = [functions.col(f"`{name}`") for name in wanted]
    return columns[0] if isinstance(names, str) else functions.struct(*columns)


def _job(prepared: PreparedFlow, node: KeyedNode, frame: DataFrame) -> Job:
    space = prepared.plan.flow.space
    slots = frame.sparkSession.sparkContext.defaultParallelism
    return Job(
        prepared.source, node.name, node.codec.name, environ(), prepared.options.kafka,
        prepared.names.state, prepared.execution, space,
        parts=min(space.count, slots),
    )  # fmt: skip


def _write(
    columns: DataFrame,
    job: Job,
    told: FlowStatus,
    progress: Progress,
) -> list[Manifest]:
    """Have Spark write all layers. Raises what is wrong with the data, with nothing left behind."""
    spark = columns.sparkSession.sparkContext
    group = f"bootstrap-{uuid4().hex[:12]}"
    entries = columns.mapInArrow(lambda rows: encode(job, rows), ENTRIES)
    parts = entries.repartitionById(job.parts, "part").sortWithinPartitions("bin", "key")
    layers = parts.mapInArrow(lambda sorted_: write(job, sorted_), LAYERS)

    def collect() -> list[Row]:
        spark.setJobGroup(group, "meander bootstrap", interruptOnCancel=True)
        return layers.collect()

    def look() -> None:
        if (step := _step(spark, group)) is not None:
            progress(*step)

    def clear() -> None:
        _await_tasks(spark, group)
        goes = tombstones.written_by(job.execution)
        now = tombstones.ends(job.kafka, job.topic)
        tombstones.erase(job.kafka, job.topic, list(map(range, before, now)), goes)

    before = tombstones.ends(job.kafka, job.topic)
    try:
        rows = run_with_heartbeat(collect, told, look, LOOK, None)
    except (PySparkException, Py4JError) as error:
        try:
            run_with_heartbeat(clear, told, _idle, LOOK, None)
        except MeanderError as other:
            log.warning("bootstrap_cleanup_failed", topic=job.topic, reason=str(other))
        raise spark_launcher.translate("Spark", str(error)) from error
    except BaseException:
        spark.cancelJobGroup(group)
        raise
    manifests = [Manifest.from_bytes(bytes(data)) for data, _ in rows if data is not None]
    failures = [Failure.from_bytes(bytes(data)) for _, data in rows if data is not None]
    if failures:
        checkpoints.erase(job.kafka, job.topic, manifests)
        raise failures[0].error()
    return manifests


def _step(spark: SparkContext, group: str) -> tuple[int, int, int] | None:
    """The newest stage of a job: its number among those begun, its tasks that are done, and all."""
    begun = [one for one in stages(spark, group) if one.numActiveTasks or one.numCompletedTasks]
    return (len(begun), begun[-1].numCompletedTasks, begun[-1].numTasks) if begun else None


def _await_tasks(spark: SparkContext, group: str) -> None:
    """A job that fails does not wait for its other tasks, and what they still write would stay."""
    deadline = time.monotonic() + ENDING
    while time.monotonic() < deadline and any(
        stage.numActiveTasks for stage in stages(spark, group)
    ):
        time.sleep(LOOK)


def stages(spark: SparkContext, group: str | None) -> list[SparkStageInfo]:
    """Return the stages of the jobs of a group, or of no group, in order, as far as Spark tells."""
    tracker = spark.statusTracker()
    with contextlib.suppress(Py4JError):
        jobs = map(tracker.getJobInfo, tracker.getJobIdsForGroup(group))
        ids = sorted({id for job in jobs if job is not None for id in job.stageIds})
        return [stage for stage in map(tracker.getStageInfo, ids) if stage is not None]
    return []
