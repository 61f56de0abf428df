"""What a driver reads and writes on Kafka beside the status topic, opened in one go."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from app.prepare import Prepared
from app.side_by_side import side_by_side
from connectors.checkpoints import CheckpointsTopic
from connectors.control import ControlTopic, Decisions
from connectors.trimmed import TrimmedTopic


@dataclass(frozen=True, slots=True)
class DriverTopics:
    """Those of one life of a flow."""

    control: ControlTopic
    decisions: Decisions
    written: CheckpointsTopic
    marks: TrimmedTopic
    checkpoints: TrimmedTopic


@contextlib.contextmanager
def opened(prepared: Prepared) -> Iterator[DriverTopics]:
    """All, to the block's end. Raises MeanderError where one cannot be opened; then none is."""
    kafka, names = prepared.options.kafka, prepared.names
    with side_by_side() as opening:
        control = opening.open(lambda: ControlTopic(kafka, names.control, prepared.group))
        decisions = opening.open(lambda: Decisions(kafka, names.decisions))
        written = opening.open(lambda: CheckpointsTopic(kafka, names.checkpoints, names.in_flight))
        marks, checkpoints = (
            opening.open(partial(TrimmedTopic, kafka, topic))
            for topic in (names.marks, names.checkpoints)
        )
        yield DriverTopics(
            control.result(), decisions.result(), written.result(), marks.result(),
            checkpoints.result(),
        )  # fmt: skip
