"""The bootstrap: it writes initial states from a Spark DataFrame as layers.

Guarantees that a flow starts from all these states or from none: the checkpoint that names them is
written last. The flow cannot run meanwhile. A bootstrap that fails deletes its records from the
state topic. Records of a killed or interrupted bootstrap stay there and are never read. Cost: the
memory of Spark, which sorts on disk.
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
from meander.app.loading.preflight import PreparedFlow, environ, prepare
from meander.app.protocol.messages import Failure
from meander.app.recovery.checkpoint_index import CheckpointIndex, expect_retained
from meander.app.recovery.decision_log import to_bytes
from meander.app.recovery.restart import last_sources, read_decisions
from meander.app.status.metrics import MetricsCollector
from meander.app.status.publisher import FlowStatus, Show
from meander.connectors.topics import checkpoints, tombstones
from meander.connectors.topics.control import DecisionTopic
from meander.dataflow.api.nodes import KeyedNode
from meander.dataflow.checkpoint.compatibility import expect_fits
from meander.dataflow.checkpoint.initial_state import InitialStates
from meander.dataflow.control.decisions import FirstCheckpointDecision
from meander.schemas.errors import MeanderError, SetupError
from meander.schemas.log_lines import LineLogger
from meander.state.checkpoint.checkpoint import INITIAL_CUT, Checkpoint
from meander.state.layers.manifest import Manifest

Names = str | Sequence[str]
"""A column, or several that form a tuple."""
Progress = Callable[[int, int, int], None]
"""A function of the number of Spark's step, its completed tasks, and all its tasks."""

POLL = 0.25
"""Seconds between two polls of Spark's progress."""
ENDING = 10.0
"""Seconds for the other tasks of a failed job to end."""

log = LineLogger(__name__)


@dataclass(frozen=True, slots=True)
class Bootstrapped:
    """A result of a bootstrap."""

    checkpoint: int
    """The number of its checkpoint."""
    keys: int
    bytes: int
    """The bytes of its layers on the state topic."""
    bins: int
    """The bins that hold a key."""
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
    """Write the states from which an operator of a flow starts; return the result.

    `frame` has one row per key, or is a function that returns such a frame after the preflight.
    Earlier bootstrapped states of other operators stay, and `replace` replaces those of this one.
    Raises SetupError where the flow or the data is unsuitable, and MeanderError for other failures.
    """
    prepared = prepare(Path(module), dataclasses.replace(options, workers=0), last_sources)
    node = _node(prepared, operator)
    with hold_lease(prepared, show, MetricsCollector()) as (prepared, status):
        before = _newest(prepared)
        retained = _retained(before, prepared, operator, replace)
        every = heartbeat_seconds(prepared.options)
        made = (
            frame
            if isinstance(frame, DataFrame)
            else run_with_heartbeat(frame, status, _idle, every, None)
        )
        columns = _columns(made, node, key, state)
        started = time.monotonic()
        manifests = _write(columns, _job(prepared, node, made), status, progress)
        number = 1 if before is None else before.number + 1
        _publish(Checkpoint(
            number, prepared.execution, prepared.plan.flow.space, SystemClock().now_ms(),
            (*retained, *manifests),
        ), before, prepared)  # fmt: skip
        seconds = time.monotonic() - started
        status.finished({})
    layers = [layer for manifest in manifests for layer in manifest.layers]
    keys = sum(layer.count for layer in layers)
    size = sum(chunk.size for layer in layers for chunk in layer.chunks)
    return Bootstrapped(number, keys, size, len(manifests), seconds)


def _idle() -> None:
    """Poll nothing."""


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
    with checkpoints.open_checkpoints(settings, names) as there:
        found = there.newest()
    if found is None:
        known = CheckpointIndex.of(read_decisions(settings, names.decisions))
        expect_retained(known, prepared.flow, names.checkpoints)
        return None
    return found[1]


def _retained(
    before: Checkpoint | None, prepared: PreparedFlow, operator: str, replace: bool
) -> tuple[Manifest, ...]:
    """What the flow starts from besides. Raises SetupError where there is something in the way."""
    if before is None:
        return ()
    if before.cut != INITIAL_CUT:
        raise SetupError(
            f"flow {prepared.flow!r}",
            f"it has run up to checkpoint {before.number}, and new states would not match the"
            " records that it has read",
            f"run meander reset {prepared.flow}, so that it starts from these states alone",
        )
    if not replace:
        expect_fits(before, prepared.plan)
        if operator in before.operators:
            raise SetupError(
                f"flow {prepared.flow!r}",
                f"its checkpoint {before.number} holds states of {operator!r} already",
                "add --replace to replace them",
            )
    if before.space != prepared.plan.flow.space:
        return ()
    others = {keyed.name for keyed in prepared.plan.keyed} - {operator}
    return tuple(manifest for manifest in before.manifests if manifest.operator in others)


def _publish(checkpoint: Checkpoint, before: Checkpoint | None, prepared: PreparedFlow) -> None:
    """Write the checkpoint from which the flow starts, and delete the layers it does not name."""
    kafka, names = prepared.options.kafka, prepared.names
    checkpoints.append(kafka, names, checkpoint)
    if before is None:
        with contextlib.closing(DecisionTopic(kafka, names.decisions)) as decisions:
            decisions.write(
                to_bytes(prepared.execution, FirstCheckpointDecision(checkpoint.cut.time))
            )
    else:
        replaced = set(before.manifests).difference(checkpoint.manifests)
        checkpoints.delete_layers(kafka, names.state, replaced)
        checkpoints.delete_records(kafka, names.in_flight, before.parts)


def _columns(frame: DataFrame, node: KeyedNode, key: Names, state: Names) -> DataFrame:
    """Select the columns of keys and states. Raises SetupError where one is missing."""
    chosen = frame.select(
        _column(frame, key, "key").alias("key"), _column(frame, state, "state").alias("state")
    )
    kind = chosen.schema["state"].dataType
    if InitialStates(node, now_ms=0).has_own_codec and not isinstance(kind, BinaryType):
        raise SetupError(
            f"operator {node.name!r}",
            f"it has its own codec, but the states are of type {kind.simpleString()}",
            "encode the states by that codec, as binary",
        )
    return chosen


def _column(frame: DataFrame, names: Names, what: str) -> Column:
    wanted = [names] if isinstance(names, str) else list(names)
    for name in wanted:
        if name not in frame.columns:
            raise SetupError(
                f"column {name!r}",
                f"the data has no such column, only {', '.join(frame.columns)}",
                f"name the column of the {what}: --{what}",
            )
    columns = [functions.col(f"`{name}`") for name in wanted]
    return columns[0] if isinstance(names, str) else functions.struct(*columns)


def _job(prepared: PreparedFlow, node: KeyedNode, frame: DataFrame) -> Job:
    space = prepared.plan.flow.space
    slots = frame.sparkSession.sparkContext.defaultParallelism
    return Job(
        prepared.source, [one.name for one in prepared.plan.sources], node.name, node.codec_name,
        environ(), prepared.options.kafka, prepared.names.state, prepared.execution, space,
        parts=min(space.count, slots), now_ms=SystemClock().now_ms(),
    )  # fmt: skip


def _write(
    columns: DataFrame,
    job: Job,
    status: FlowStatus,
    progress: Progress,
) -> list[Manifest]:
    """Let Spark write all layers; return their manifests. Raises the first error of the data."""
    spark = columns.sparkSession.sparkContext
    group = f"bootstrap-{uuid4().hex[:12]}"
    entries = columns.mapInArrow(lambda rows: encode(job, rows), ENTRIES)
    parts = entries.repartitionById(job.parts, "part").sortWithinPartitions("bin", "key")
    layers = parts.mapInArrow(lambda sorted_: write(job, sorted_), LAYERS)

    def collect() -> list[Row]:
        spark.setJobGroup(group, "meander bootstrap", interruptOnCancel=True)
        return layers.collect()

    def poll() -> None:
        if (step := _step(spark, group)) is not None:
            progress(*step)

    def clear() -> None:
        _await_tasks(spark, group)
        goes = tombstones.written_by(job.execution)
        now = tombstones.end_offsets(job.kafka, job.topic)
        tombstones.delete_matching(job.kafka, job.topic, list(map(range, before, now)), goes)

    before = tombstones.end_offsets(job.kafka, job.topic)
    try:
        rows = run_with_heartbeat(collect, status, poll, POLL, None)
    except (PySparkException, Py4JError) as error:
        try:
            run_with_heartbeat(clear, status, _idle, POLL, None)
        except MeanderError as other:
            log.warning("bootstrap_cleanup_failed", topic=job.topic, reason=str(other))
        raise spark_launcher.translate("Spark", str(error)) from error
    except BaseException:
        spark.cancelJobGroup(group)
        raise
    manifests = [Manifest.from_bytes(bytes(data)) for data, _ in rows if data is not None]
    failures = [Failure.from_bytes(bytes(data)) for _, data in rows if data is not None]
    if failures:
        checkpoints.delete_layers(job.kafka, job.topic, manifests)
        raise failures[0].error()
    return manifests


def _step(spark: SparkContext, group: str) -> tuple[int, int, int] | None:
    """Return the number of the newest started stage, its completed tasks, and all its tasks."""
    started = [one for one in stages(spark, group) if one.numActiveTasks or one.numCompletedTasks]
    if not started:
        return None
    return len(started), started[-1].numCompletedTasks, started[-1].numTasks


def _await_tasks(spark: SparkContext, group: str) -> None:
    """Wait for the other tasks of a failed job, which may still write to the state topic."""
    deadline = time.monotonic() + ENDING
    while time.monotonic() < deadline and any(
        stage.numActiveTasks for stage in stages(spark, group)
    ):
        time.sleep(POLL)


def stages(spark: SparkContext, group: str | None) -> list[SparkStageInfo]:
    """Return the stages of the jobs of a group, or of no group, in order, as far as Spark tells."""
    tracker = spark.statusTracker()
    with contextlib.suppress(Py4JError):
        jobs = map(tracker.getJobInfo, tracker.getJobIdsForGroup(group))
        ids = sorted({id for job in jobs if job is not None for id in job.stageIds})
        return [stage for stage in map(tracker.getStageInfo, ids) if stage is not None]
    return []
