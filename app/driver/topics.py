"""What a driver reads and writes on Kafka in one life of its flow, opened in one go; it has the
status topic and the journal through all of them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from meander.app.common.concurrent import side_by_side
from meander.app.flow.preflight import PreparedFlow
from meander.connectors.topics import tombstones
from meander.connectors.topics.checkpoints import CheckpointsTopic
from meander.connectors.topics.control import ControlTopic
from meander.connectors.topics.truncation import TrimmedTopic


@dataclass(frozen=True, slots=True)
class DriverTopics:
    """Those of one life of a flow."""

    control: ControlTopic
    written: CheckpointsTopic
    marks: TrimmedTopic
    checkpoints: TrimmedTopic
    lying: Mapping[str, Sequence[int]]
    """How far the in-flight and the state topic reach, by partition, before the life begins."""


@contextlib.contextmanager
def opened(prepared: PreparedFlow) -> Iterator[DriverTopics]:
    """All, to the block's end. Raises MeanderError where one cannot be opened; then none is."""
    kafka, names = prepared.options.kafka, prepared.names
    with side_by_side() as opening:
        control = opening.open(lambda: ControlTopic(kafka, names.control, prepared.group))
        written = opening.open(lambda: CheckpointsTopic(kafka, names))
        marks, checkpoints = (
            opening.open(partial(TrimmedTopic, kafka, topic))
            for topic in (names.marks, names.checkpoints)
        )
        lying = {
            topic: opening.ask(partial(tombstones.ends, kafka, topic))
            for topic in (names.in_flight, names.state)
        }
        yield DriverTopics(
            control.result(), written.result(), marks.result(), checkpoints.result(),
            {topic: ends.result() for topic, ends in lying.items()},
        )  # fmt: skip
