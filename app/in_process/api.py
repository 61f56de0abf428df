"""What `Flow.run` and `Stream.take` do, with the settings that commands use too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from confluent_kafka import KafkaException

from meander.app.config import cluster
from meander.app.in_process import runner
from meander.app.in_process.collector import Collector
from meander.connectors.kafka.client import Settings
from meander.connectors.kafka.original_records import read_originals
from meander.dataflow.api.builder import Definition
from meander.dataflow.api.flow import Flow
from meander.dataflow.api.in_process import InProcessResult
from meander.dataflow.api.nodes import Node, Output, SinkNode
from meander.dataflow.api.upstream import ancestors
from meander.dataflow.metrics.counters import counted
from meander.dataflow.simulation.in_memory import DeadLetter
from meander.schemas.dead_letter import RecordPlace
from meander.schemas.errors import MeanderError, SetupError
from meander.schemas.log_lines import LineLogger

log = LineLogger(__name__)


def run(
    flow: Flow, *, until_end: bool, fire_timers: bool, start: str, bootstrap: str | None
) -> InProcessResult:
    """Run a flow in this process; see `Flow.run`."""
    result = runner.run(
        flow, flow.nodes, lambda: cluster.kafka(None, None, bootstrap), until_end=until_end,
        fire_timers=fire_timers, start=start,
    )  # fmt: skip
    if not any(letter.topic for letter in result.dead_letters):
        return result
    kafka = cluster.kafka(None, None, bootstrap)
    return replace(result, dead_letters=_with_originals(result.dead_letters, kafka))


def take(
    flow: Definition, at: Output, count: int, *, start: str, bootstrap: str | None
) -> list[object]:
    """Return the first values at an output; see `Stream.take`."""
    if at.scope.parent is not None:
        raise SetupError(f"operator {at.node.name!r}", "it lies inside a loop",
                         "take from a stream that has left the loop")  # fmt: skip
    assert isinstance(flow, Flow), "streams belong to flows"
    found = list[object]()

    def collect(_: Sequence[object], values: Sequence[object]) -> None:
        found.extend(values)

    name = flow.name_for("take")
    nodes = [*ancestors(flow.nodes, at.node), SinkNode(name, at, Collector(collect), "fail")]
    result = runner.run(
        flow, nodes, lambda: cluster.kafka(None, None, bootstrap), until_end=True,
        fire_timers=True, start=start, enough=lambda: len(found) >= count,
    )  # fmt: skip
    by_operator = _by_operator(result.dead_letters, nodes)
    if by_operator and not found:
        lines = "".join(
            f"\n  operator {operator!r}: {counted(len(letters), 'dead letter')}, the first:"
            f" {letters[0].reason}"
            for operator, letters in by_operator.items()
        )
        raise SetupError(
            f"stream {at.node.name!r}", f"it gave no value, and operators gave dead letters{lines}",
            "correct the function of the first operator, or the format of its source",
        )  # fmt: skip
    for operator, letters in by_operator.items():
        reason = letters[0].reason
        log.warning("dead_letters_given", operator=operator, count=len(letters), reason=reason)
    return found[:count]


def _with_originals(dead_letters: Sequence[DeadLetter], kafka: Settings) -> tuple[DeadLetter, ...]:
    """Return dead letters with the records that their topics hold."""
    places = [
        RecordPlace(letter.topic, "", int(letter.partition), int(letter.offset))
        for letter in dead_letters
    ]
    try:
        found = read_originals(kafka, (place for place in places if place.topic))
    except (KafkaException, MeanderError) as error:
        # The results have left, so the run has not failed.
        log.warning("original_records_unread", reason=str(error))
        return tuple(dead_letters)
    return tuple(
        replace(letter, original=found.get(place))
        for letter, place in zip(dead_letters, places, strict=True)
    )


def _by_operator(
    dead_letters: Sequence[DeadLetter], nodes: Sequence[Node]
) -> dict[str, list[DeadLetter]]:
    """Return dead letters by operator: first that nearest to the end of `nodes`, last the sources,
    whose unreadable records come from no node."""
    places = {node.name: place for place, node in enumerate(nodes)}
    found = dict[str, list[DeadLetter]]()
    for letter in sorted(dead_letters, key=lambda one: -places.get(one.operator, -1)):
        found.setdefault(letter.operator, []).append(letter)
    return found
