"""The topics that a driver opens for one execution. Status and decisions stay open over all."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from meander.app.common.concurrent import open_concurrently
from meander.app.loading.preflight import PreparedFlow
from meander.connectors.topics import tombstones
from meander.connectors.topics.checkpoints import CheckpointsTopic
from meander.connectors.topics.control import ControlTopic
from meander.connectors.topics.plans import PlansTopic, read_plans
from meander.connectors.topics.truncation import TruncatedTopic
from meander.schemas.plan_record import PlanRecord


@dataclass(frozen=True, slots=True)
class DriverTopics:
    """A set of topics that the driver of one execution reads and writes."""

    control: ControlTopic
    checkpoints: CheckpointsTopic
    truncated_markers: TruncatedTopic
    truncated_checkpoints: TruncatedTopic
    plans: PlansTopic
    known_plans: Mapping[str, PlanRecord]
    """The plans of earlier executions, by id."""
    ends: Mapping[str, Sequence[int]]
    """The ends of the in-flight and state topic's partitions before the execution starts."""


@contextlib.contextmanager
def opened(prepared: PreparedFlow) -> Iterator[DriverTopics]:
    """Open all topics while the block lasts. Raises MeanderError, with none left open."""
    kafka, names = prepared.options.kafka, prepared.names
    with open_concurrently() as opening:
        control = opening.open(lambda: ControlTopic(kafka, names.control, prepared.group))
        written = opening.open(lambda: CheckpointsTopic(kafka, names))
        markers, checkpoints = (
            opening.open(partial(TruncatedTopic, kafka, topic))
            for topic in (names.commit_markers, names.checkpoints)
        )
        ends = {
            topic: opening.ask(partial(tombstones.end_offsets, kafka, topic))
            for topic in (names.in_flight, names.state)
        }
        plans = opening.open(lambda: PlansTopic(kafka, names.plans))
        known = opening.ask(lambda: read_plans(kafka, names.plans))
        yield DriverTopics(
            control.result(), written.result(), markers.result(), checkpoints.result(),
            plans.result(), known.result(),
            {topic: found.result() for topic, found in ends.items()},
        )  # fmt: skip
