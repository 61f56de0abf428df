"""What a driver reads and writes on Kafka beside the status topic, opened in one go.

Each takes a tenth of a second or more to meet the broker, and a recovery waits for all.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol, TypeVar

from app.prepare import Prepared
from connectors.checkpoints import CheckpointsTopic
from connectors.control import ControlTopic, Decisions
from connectors.marks import MarksTopic


class _Closes(Protocol):
    def close(self) -> None:
        """Release connections."""


C = TypeVar("C", bound=_Closes)


@dataclass(frozen=True, slots=True)
class DriverTopics:
    """Those of one life of a flow."""

    control: ControlTopic
    decisions: Decisions
    written: CheckpointsTopic
    marks: MarksTopic


@contextlib.contextmanager
def opened(prepared: Prepared) -> Iterator[DriverTopics]:
    """All, to the block's end. Raises MeanderError where one cannot be opened; then none is."""
    kafka, names = prepared.options.kafka, prepared.names
    with contextlib.ExitStack() as ends, ThreadPoolExecutor() as pool:

        def begin(make: Callable[[], C]) -> Future[C]:
            future = pool.submit(make)
            ends.callback(_close, future)
            return future

        control = begin(lambda: ControlTopic(kafka, names.control, prepared.group))
        decisions = begin(lambda: Decisions(kafka, names.decisions))
        written = begin(lambda: CheckpointsTopic(kafka, names.checkpoints, names.in_flight))
        marks = begin(lambda: MarksTopic(kafka, names.marks))
        yield DriverTopics(control.result(), decisions.result(), written.result(), marks.result())


def _close(future: Future[C]) -> None:
    if future.exception() is None:
        future.result().close()
