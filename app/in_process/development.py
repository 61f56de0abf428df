"""The process of a flow for `meander dev`: it prints a JSON line for each result.

Guarantees that the process ends when its standard input closes, so also with the command that has
started it. Output of the user's code goes to standard error.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import IO

import msgspec
from confluent_kafka import KafkaException
from confluent_kafka.admin import NewTopic
from pydantic_core import to_json

from meander.app.in_process import runner
from meander.app.in_process.collector import Collector
from meander.app.loading.loader import load_flow
from meander.connectors.kafka import client
from meander.connectors.kafka.sink.sink import KafkaSink
from meander.connectors.kafka.source.source import KafkaSource
from meander.dataflow.api.flow import Flow
from meander.dataflow.api.nodes import Node, SinkNode, SourceNode
from meander.dataflow.operators.error_policy import safe_repr
from meander.dataflow.simulation.in_memory import DeadLetter
from meander.schemas.errors import MeanderError

PARTITIONS = 4
"""The partitions of a topic on the local broker that the flow reads and that did not exist."""


@dataclass(frozen=True, slots=True)
class Development:
    """What the process gets."""

    module: str
    kafka: dict[str, str]
    start: str
    creates_topics: bool
    """Whether it creates the topics that the flow reads."""

    def to_line(self) -> str:
        """Return it as a line."""
        return msgspec.json.encode(self).decode() + "\n"

    @staticmethod
    def from_line(line: str) -> Development:
        """Return what a line holds."""
        return msgspec.json.decode(line, type=Development)


def main() -> None:
    """Run the flow that standard input names."""
    development = Development.from_line(sys.stdin.readline())
    threading.Thread(target=_end_with_input, daemon=True).start()
    # Results have the standard output for themselves.
    results = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    try:
        flow = load_flow(Path(development.module))
        if development.creates_topics:
            _create_topics(flow, development.kafka)
        _print(results, type="started", flow=flow.name)
        runner.run(
            flow, [_shown(node, results) for node in flow.nodes], lambda: development.kafka,
            start=development.start, on_dead_letter=partial(_print_dead_letter, results),
        )  # fmt: skip
    except MeanderError as error:
        _print(results, type="failed", reason=str(error))


def _end_with_input() -> None:
    sys.stdin.read()
    os._exit(0)


def _shown(node: Node, results: IO[str]) -> Node:
    """Return a node whose results are printed in place of being written."""
    if not isinstance(node, SinkNode):
        return node
    spec = node.spec
    name = spec.topic if isinstance(spec, KafkaSink) and isinstance(spec.topic, str) else node.name

    def show(keys: Sequence[object], values: Sequence[object]) -> None:
        for key, value in zip(keys, values, strict=True):
            _print(results, type="result", sink=name, key=key, value=value)

    return replace(node, spec=Collector(show))


def _print_dead_letter(results: IO[str], letter: DeadLetter) -> None:
    _print(
        results, type="dead_letter", operator=letter.operator, value=safe_repr(letter.value),
        reason=letter.reason,
    )  # fmt: skip


def _print(results: IO[str], **fields: object) -> None:
    results.write(to_json(fields, fallback=safe_repr, bytes_mode="utf8").decode() + "\n")


def _create_topics(flow: Flow, kafka: dict[str, str]) -> None:
    """Create the topics that the flow reads and that do not exist."""
    admin = client.admin(kafka)
    present = admin.list_topics(timeout=client.REQUEST_TIMEOUT).topics
    sources = (node.spec for node in flow.nodes if isinstance(node, SourceNode))
    named = (
        [spec.topic] if isinstance(spec.topic, str) else spec.topic
        for spec in sources
        if isinstance(spec, KafkaSource) and not spec.pattern
    )  # fmt: skip
    absent = [topic for topics in named for topic in topics if topic not in present]
    new = [NewTopic(topic, PARTITIONS, 1) for topic in dict.fromkeys(absent)]
    for topic, future in (admin.create_topics(new) if new else {}).items():
        try:
            future.result()
        except KafkaException as error:
            raise client.translate(error, f"topic {topic!r}") from None


if __name__ == "__main__":
    main()
