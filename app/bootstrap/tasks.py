"""The Spark tasks of a bootstrap: rows become encoded entries, and sorted entries become layers.

Guarantees that an invalid row stops the writing of all tasks, and that each task reports its
manifests to the driver, also after a failure. Between the two steps Spark sorts the entries by bin
and key. An error of the data travels as a row, because Spark would wrap an exception in fifty
lines. Cost: about 3 us for a small entry, both steps together.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import chain, pairwise
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
from pyspark import SparkFiles, TaskContext

from meander.app.loading.loader import SourceFiles, load_flow
from meander.app.protocol.messages import Failure
from meander.connectors.kafka.source.values import plain
from meander.connectors.topics.state import KafkaStateTopic
from meander.dataflow.api.plan import Plan
from meander.dataflow.checkpoint.initial_state import InitialStates
from meander.schemas.errors import MeanderError
from meander.state.encoding.named_types import use
from meander.state.keys.bins import MAX_BITS, BinSpace
from meander.state.keys.ids import COORDINATOR, Bin, ExecutionId, LayerId
from meander.state.layers.bootstrap_input import BootstrapInput, first_layer
from meander.state.layers.layer import CHUNK_ENTRIES
from meander.state.layers.layer_writer import LayerWriter
from meander.state.layers.manifest import Manifest

ENTRIES: Final = "part int, bin int, key binary, state binary"
"""The rows between the two steps, as a schema of Spark."""
LAYERS: Final = "manifest binary, failure binary"
"""The rows of the result, each with one of the two columns."""
AT_ONCE: Final = 16
"""The limit of layers that are being written when another starts."""
POLL: Final = 0.001
"""Seconds between two polls for durable chunks."""
_FAILED: Final = -1
"""The bin of a row whose key holds a failure; it sorts before all entries."""


@dataclass(frozen=True, slots=True)
class Job:
    """A description of the bootstrap for each task; it may contain secrets of Kafka."""

    source: SourceFiles = field(repr=False)
    sources: Sequence[str]
    """The sources of the flow, by number."""
    operator: str
    codec: str
    """The name of the operator's codec."""
    environ: dict[str, str] = field(repr=False)
    """Environment variables that the flow's module may read, perhaps with secrets of a registry."""
    kafka: dict[str, str] = field(repr=False)
    topic: str
    """The state topic."""
    execution: ExecutionId
    space: BinSpace
    parts: int
    """The number of ranges of bins, one for each task."""
    now_ms: int
    """When the bootstrap began, in milliseconds since 1970. A time to live begins here."""


def encode(job: Job, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Encode rows of keys and states as entries of their bins."""
    os.environ.update(job.environ)
    with _folder() as name:
        try:
            initial = _initial(job, Path(name))
            for batch in batches:
                yield _entries(job, initial, batch)
        except MeanderError as error:
            yield _failed(job, error)


def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(
        prefix="meander-bootstrap-", dir=SparkFiles.getRootDirectory()
    )


def _initial(job: Job, folder: Path) -> InitialStates:
    plan = Plan(load_flow(job.source.unpack(folder)), job.sources)
    use(plan.flow.named_types)
    node = next(keyed for keyed in plan.keyed if keyed.name == job.operator)
    return InitialStates(node, job.now_ms)


def _entries(job: Job, initial: InitialStates, batch: pa.RecordBatch) -> pa.RecordBatch:
    column = batch.column(1)
    values, states = plain(batch.column(0)), plain(column)
    if initial.has_fields and pa.types.is_struct(column.type):
        names = [one.name for one in column.type]
        states = [
            dict(zip(names, state, strict=True)) if isinstance(state, tuple) else state
            for state in states
        ]
    keys = initial.keys(values)
    data = (
        initial.encoded(values, states) if initial.has_own_codec else initial.states(values, states)
    )
    bins = job.space.bins_of(job.space.hash_keys(keys)).astype(np.int32)
    return _batch(bins * job.parts >> job.space.bits, bins, keys, data)


def _failed(job: Job, error: MeanderError) -> pa.RecordBatch:
    """Return a failure for each part, so that no part is written."""
    parts = np.arange(job.parts, dtype=np.int32)
    failure = Failure.at("bootstrap", error, "").to_bytes()
    return _batch(parts, np.full_like(parts, _FAILED), [failure] * job.parts, [b""] * job.parts)


def _batch(
    parts: np.ndarray, bins: np.ndarray, keys: Sequence[bytes], states: Sequence[bytes]
) -> pa.RecordBatch:
    columns = [
        pa.array(parts, pa.int32()), pa.array(bins, pa.int32()),
        pa.array(keys, pa.binary()), pa.array(states, pa.binary()),
    ]  # fmt: skip
    return pa.RecordBatch.from_arrays(columns, ["part", "bin", "key", "state"])


def write(job: Job, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Write sorted entries as layers to the state topic; yield manifests once all are durable."""
    some = (batch for batch in batches if len(batch))
    first = next(some, None)
    if first is None:
        return
    part = first.column(0)[0].as_py()
    with (
        closing(KafkaStateTopic(job.kafka, job.topic, part, threading.Event())) as topic,
        _folder() as tables,
    ):
        writing = _Writing(job, topic, Path(tables))
        writing.run(chain((first,), some))
    manifests = [manifest.to_bytes() for manifest in writing.manifests]
    failures = [writing.failure] if writing.failure else []
    columns = [
        pa.array([*manifests, *[None] * len(failures)], pa.binary()),
        pa.array([*[None] * len(manifests), *failures], pa.binary()),
    ]
    yield pa.RecordBatch.from_arrays(columns, ["manifest", "failure"])


class _Writing:
    """A writer of the layers of one part. It writes a bin while earlier ones become durable."""

    def __init__(self, job: Job, topic: KafkaStateTopic, tables: Path) -> None:
        self._job, self._topic, self._tables = job, topic, tables
        context = TaskContext.get()
        assert context is not None
        # A second attempt of a task must not use the keys of the first.
        self._attempt = context.taskAttemptId()
        self._bin, self._given = _FAILED, BootstrapInput(job.operator)
        self._writing: list[LayerWriter] = []
        self.manifests: list[Manifest] = []
        """The manifests of durable layers."""
        self.failure = b""

    def run(self, batches: Iterator[pa.RecordBatch]) -> None:
        """Write all entries, or those before the first failure."""
        try:
            for batch in batches:
                if not self._write(batch):
                    break
        except MeanderError as error:
            self.failure = Failure.at("bootstrap", error, "").to_bytes()
        self._given.end()
        self._await_layers(most=0)

    def _write(self, batch: pa.RecordBatch) -> bool:
        """Write the entries of a batch; return False at a failure."""
        bins = batch.column(1).to_numpy()
        keys, states = batch.column(2).to_pylist(), batch.column(3).to_pylist()
        if bins[0] == _FAILED:
            self.failure = keys[0]
            return False
        ends = (np.flatnonzero(np.diff(bins)) + 1).tolist()
        for start, end in pairwise((0, *ends, len(bins))):
            if (bin := int(bins[start])) != self._bin:
                self._start_bin(Bin(bin))
            self._given.add(keys[start:end], states[start:end])
            while left := self._given.pending:
                self._step()
                if left == self._given.pending:
                    time.sleep(POLL)
        return True

    def _start_bin(self, bin: Bin) -> None:
        self._given.end()
        self._await_layers(AT_ONCE)
        job = self._job
        self._bin, self._given = bin, BootstrapInput(job.operator)
        layer = LayerId(job.execution, COORDINATOR, self._attempt << MAX_BITS | bin)
        self._writing.append(
            first_layer(self._given, layer, job.operator, bin, job.codec, self._topic, self._tables)
        )

    def _await_layers(self, most: int) -> None:
        """Wait until at most `most` layers are being written."""
        self._step()
        while len(self._writing) > most:
            time.sleep(POLL)
            self._step()

    def _step(self) -> None:
        for layer in list(self._writing):
            try:
                if not layer.step(CHUNK_ENTRIES):
                    continue
                self.manifests.append(layer.manifest)
            except MeanderError:
                self._writing.remove(layer)
                layer.cancel()
                raise
            self._writing.remove(layer)
