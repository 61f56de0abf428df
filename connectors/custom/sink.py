"""The interface for sinks: each worker has a part, which makes its results durable outside.

Guarantees at-least-once delivery: a result counts as written once `write` has returned, and a
restart writes again what follows the checkpoint. `encode` runs in the worker's loop, so that the
error policy of the sink gets a value that does not fit. A thread writes all waiting results
together, so batches grow with the load. A flow that delivers exactly once refuses these sinks, as
only Kafka's transactions commit results and positions together.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Protocol

from meander.connectors.custom.records import SinkRecord
from meander.dataflow.interfaces import SinkSpec, WorkerContext
from meander.dataflow.operators.error_policy import describe, failure
from meander.dataflow.records.batch import Batch
from meander.schemas.errors import MeanderError, SetupError
from meander.schemas.row_error import RowError
from meander.state.encoding import codec
from meander.state.times.time import to_millis


class SinkPart(Protocol):
    """The part of a sink that one worker writes. One thread calls it."""

    def write(self, records: Sequence[SinkRecord]) -> None:
        """Write results in their order; return once they are durable."""

    def close(self) -> None:
        """Release what the part has open."""


class Sink(SinkSpec, ABC):
    """A sink outside Kafka; implements `SinkSpec`. A subclass opens the part of a worker.

    >>> from meander import Flow, KafkaSource, Sink
    >>> from meander.testing import TestFlow
    >>> class Stdout(Sink):
    ...     def open_part(self, worker):
    ...         return self
    ...     def write(self, records):
    ...         print([(record.value, record.time_ms) for record in records])
    ...     def close(self):
    ...         pass
    >>> flow = Flow("printed")
    >>> flow.source(KafkaSource("books", value="str")).sink(Stdout())
    >>> with TestFlow(flow) as run:
    ...     run.feed("books", "Emma", ms=5)
    ...     run.run()
    [('Emma', 5)]
    """

    @abstractmethod
    def open_part(self, worker: int) -> SinkPart:
        """Return the part of a worker. Parts of two workers, and of two executions, may be open at
        one time."""

    def encode(self, value: object) -> object:
        """Return what the part gets of a value. Raise TypeError or ValueError for one that does not
        fit."""
        return value

    @property
    def label(self) -> str:
        """Return the name of the sink in errors."""
        return type(self).__name__

    def open(self, context: WorkerContext) -> ThreadedWriter:
        """Return this worker's writer."""
        return ThreadedWriter(self, context)


def open_part(sink: Sink, worker: int) -> SinkPart:
    """Return the part of a worker. Raise SetupError where the user's code fails."""
    try:
        return sink.open_part(worker)
    except MeanderError:
        raise
    except failure() as error:
        raise SetupError(
            f"sink {sink.label!r}", f"it cannot be opened: {describe(error)}",
            "correct its method open_part, or what it opens",
        ) from error  # fmt: skip


def encode_batch(sink: Sink, batch: Batch) -> list[SinkRecord]:
    """Return the records of a batch. Raise RowError for the rows that do not fit."""
    encoded, errors = list[object](), dict[int, RowError]()
    for row, value in enumerate(batch.values):
        try:
            encoded.append(sink.encode(value))
        except failure() as error:  # it is the user's code
            cause = f"its value cannot be written: {describe(error)}"
            errors[row] = RowError(row, f"sink {sink.label!r}", cause)
    if errors:
        raise RowError.first(errors)
    keys = [None] * len(batch) if batch.keys is None else map(codec.decode, batch.keys)
    times = map(to_millis, batch.times.tolist())
    return [SinkRecord(*one) for one in zip(encoded, keys, times, strict=True)]


class ThreadedWriter:
    """A writer whose thread writes the part of one worker; implements `SinkWriter`."""

    def __init__(self, sink: Sink, context: WorkerContext) -> None:
        self._sink, self._wakeup = sink, context.wakeup
        self._part = open_part(sink, context.worker)
        self._max_bytes = context.max_waiting
        self._waiting = list[SinkRecord]()
        self._bytes = self._written = self._delivered = 0
        self._failure: MeanderError | None = None
        self._changed, self._closing = threading.Condition(), False
        self._thread = threading.Thread(target=self._run, name=f"write {sink.label}", daemon=True)
        self._thread.start()

    def write(self, batch: Batch) -> int:
        """Accept one batch; return its ticket. Raise RowError for a row that does not fit."""
        records = encode_batch(self._sink, batch)
        with self._changed:
            self._waiting += records
            self._bytes += batch.estimated_weight
            self._written += 1
            self._changed.notify()
            return self._written

    @property
    def full(self) -> bool:
        """Return whether the sink should wait, as half of the bound is in use."""
        return 2 * self._bytes > self._max_bytes

    def delivered(self) -> int:
        """Return the last ticket up to which all results are durable. Raise the part's error."""
        if self._failure is not None:
            raise self._failure
        return self._delivered

    def close(self) -> None:
        """Drop results that are not being written, and close the part behind its last write."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()
        self._part.close()

    def _run(self) -> None:
        try:
            while self._write_waiting():
                self._wakeup.set()
        except MeanderError as error:
            self._failure = error
        except failure() as error:  # it is the user's code
            cause = f"its results cannot be written: {describe(error)}"
            self._failure = MeanderError(f"sink {self._sink.label!r}", cause)
        self._wakeup.set()

    def _write_waiting(self) -> bool:
        """Write all waiting results; return whether there were any before the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._written > self._delivered or self._closing)
            if self._closing:
                return False
            records, self._waiting = self._waiting, []
            ticket, size = self._written, self._bytes
        self._part.write(records)
        with self._changed:
            self._delivered = ticket
            self._bytes -= size
        return True
