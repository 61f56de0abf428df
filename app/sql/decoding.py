"""The decoders of views: from the bytes on Kafka to keys, values and states.

Guarantees that a task decodes as the flow does, with the formats, codecs and classes of its module
where that is known. Objects of this module travel to tasks, which load the flow there. Cost: one
load of the flow per process.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from meander.app.loading.loader import load_flow
from meander.app.sql.kinds import Kind, kind_of
from meander.connectors.kafka.formats import (
    Decoder,
    Format,
    Place,
    ValueFormat,
    at_place,
    decoder,
)
from meander.connectors.kafka.sink.sink import KafkaSink
from meander.connectors.kafka.source.source import KafkaSource
from meander.connectors.spark.state_rows import Entries, Rows
from meander.connectors.spark.topic_rows import Decode
from meander.connectors.spark.views import Row
from meander.dataflow.api.flow import Flow
from meander.dataflow.api.nodes import KeyedNode, SinkNode, SourceNode
from meander.dataflow.operators.error_policy import describe, failure
from meander.dataflow.operators.keyed.logic import unmarked
from meander.dataflow.tables.copies import COPIES, key_of_entry
from meander.schemas.errors import SetupError
from meander.state.checkpoint.arrangements import KeptArrangement
from meander.state.checkpoint.checkpoint import Checkpoint
from meander.state.encoding import codec
from meander.state.encoding.codec import DEFINED, PLAIN
from meander.state.encoding.expiring import split_due
from meander.state.encoding.named_types import use
from meander.state.times.time import END_TIME, MIN_TIME


@functools.lru_cache(maxsize=1)
def flow_of(module: Path) -> Flow:
    """Return the flow of a module; this process then knows its classes."""
    flow = load_flow(module)
    use(flow.named_types)
    return flow


def guessed(data: Iterable[bytes | None], among: tuple[Format, ...]) -> Format:
    r"""Return the first format that reads all of some values; "bytes" if none of them does.

    >>> guessed([b'{"n": 1}', None], ("json", "str")), guessed([b"Rome"], ("json", "str"))
    ('json', 'str')
    >>> guessed([b"\xff"], ("json", "str"))
    'bytes'
    """
    known = [*data]
    return next((form for form in among if _reads(form, known)), "bytes")


def _reads(form: Format, data: Iterable[bytes | None]) -> bool:
    decode = decoder(form)
    try:
        for one in data:
            decode(one)
    except ValueError:
        return False
    return True


Form = Format | Decoder | ValueFormat[Any]


def declared_form(spec: KafkaSource | KafkaSink, part: str) -> Form | None:
    """Return the format with which a flow reads a part of its records, or that undoes how it writes
    them; None where a function writes them.

    >>> declared_form(KafkaSink("totals"), "value"), declared_form(KafkaSink("totals"), "key")
    ('json', None)
    """
    form: Any = getattr(spec, part)
    if isinstance(spec, KafkaSource) or isinstance(form, ValueFormat):
        return form  # type: ignore[no-any-return]
    return None if form == "plain" or callable(form) else form


def topics_of(spec: object, present: Sequence[str]) -> list[str]:
    """Return the topics that a source or a sink names, or those of the cluster that match."""
    if isinstance(spec, KafkaSource):
        named = [spec.topic] if isinstance(spec.topic, str) and not spec.pattern else None
        return named or [*spec.parts(present)]
    return spec.topics_of(present) if isinstance(spec, KafkaSink) else []


@dataclass(frozen=True, slots=True)
class TopicDecoders:
    """The decoders of a topic: those of a source or sink of a flow, or formats that fit a
    sample."""

    topic: str
    key: Format
    value: Format
    """The formats where the flow has none."""
    module: Path | None = None
    node: str = ""
    """The source or the sink."""

    def __call__(self) -> tuple[Decode, Decode]:
        """Return the decoders of keys and values."""
        spec = None if self.module is None else spec_of(flow_of(self.module), self.node)
        return self._decoder(spec, "key", self.key), self._decoder(spec, "value", self.value)

    def _decoder(self, spec: KafkaSource | KafkaSink | None, part: str, guess: Format) -> Decode:
        form = (None if spec is None else declared_form(spec, part)) or guess
        # As in a source, because that of a sink asks the registry for the id of its schema.
        decode = decoder(at_place(form, Place(self.topic, part, "source")))
        names = form.names if isinstance(form, ValueFormat) else ()
        return partial(_with_names, names, decode) if names else decode


def _with_names(names: Sequence[str], decode: Decode, data: bytes | None) -> object:
    """Return a tuple of columns by name."""
    row = decode(data)
    return dict(zip(names, row, strict=True)) if isinstance(row, tuple) else row


def spec_of(flow: Flow, name: str) -> KafkaSource | KafkaSink | None:
    """Return the definition of a source or sink on Kafka by the name of its node."""
    specs = (node.spec for node in flow.nodes
             if isinstance(node, SourceNode | SinkNode) and node.name == name)  # fmt: skip
    return next((one for one in specs if isinstance(one, KafkaSource | KafkaSink)), None)


def keyed_node(flow: Flow, operator: str) -> KeyedNode | None:
    """Return the node of a stateful operator by its name."""
    nodes = (one for one in flow.nodes if isinstance(one, KeyedNode) and one.name == operator)
    return next(nodes, None)


@dataclass(frozen=True, slots=True)
class StateDecoder:
    """The decoder of an operator's states. Without a module, states of an own codec stay bytes."""

    operator: str
    codec: str
    """The name of the codec that has written the states."""
    module: Path | None = None

    def __call__(self) -> Rows:
        """Return the function that turns entries into rows."""
        node = None if self.module is None else keyed_node(flow_of(self.module), self.operator)
        kind = kind_of(node)
        decode: Callable[[bytes], object] = _plain_state
        if node is not None and self.codec not in (PLAIN.name, node.codec.name):
            raise SetupError(
                f"operator {self.operator!r}",
                f"its states have the codec {self.codec!r}, and the flow's is {node.codec.name!r}",
                "give the flow's name in place of its module to see their bytes",
            )
        if not _is_plain(self.codec):
            decode = bytes if node is None else node.codec.decode
        decode_key: Callable[[bytes], object] = (
            key_of_entry if self.codec == COPIES.name else codec.decode
        )

        def rows(checkpoint: Checkpoint, entries: Entries) -> list[Row]:
            ended = ended_by(checkpoint, self.operator)
            return [
                row
                for entry, data in entries
                for row in _state_rows(kind, entry, data, decode_key, decode, ended)
            ]

        return rows


def ended_by(checkpoint: Checkpoint, operator: str) -> int:
    """Return the greatest due time of the states that have ended for all records which an operator
    still gets. At the end of the input no time tells it."""
    frontier = dict(checkpoint.cut.frontiers).get(operator, MIN_TIME)
    return MIN_TIME if frontier == END_TIME else frontier


def _is_plain(name: str) -> bool:
    """Return whether a codec of this name writes plain values; it may name its operator, too."""
    return name == PLAIN.name or name.startswith(DEFINED)


def _plain_state(data: bytes) -> object:
    """Return the state of some bytes, also one that another version has upgraded."""
    return unmarked(data)[1]


def _state_rows(
    kind: Kind,
    entry: bytes,
    data: bytes,
    decode_key: Callable[[bytes], object],
    decode: Callable[[bytes], object],
    ended: int,
) -> Iterator[Row]:
    """Yield the rows of an entry, unless its time to live has ended."""
    name, (due, encoded) = kind.key_of(entry), split_due(data)
    if name is None or due <= ended:
        return
    key: object = None
    try:
        key = decode_key(name)
        rows = [*kind.rows(entry, key, decode(encoded))]
    except failure() as error:  # a codec may be the user's
        yield (key, *[None] * (len(kind.columns) - 1), describe(error))
        return
    for row in rows:
        yield (*row, None)


@dataclass(frozen=True, slots=True)
class CollectionDecoder:
    """The decoder of a collection that an operator keeps."""

    arrangement: KeptArrangement

    def __call__(self) -> Rows:
        """Return the function that turns the entries of a bin into rows."""
        # Here, because it brings numba, which other views do without.
        from meander.dataflow.operators.collection.checkpointed_rows import rows_at

        def rows(checkpoint: Checkpoint, entries: Entries) -> list[Row]:
            found = rows_at(checkpoint, self.arrangement, [entries], None)
            columns = found.keys.tolist(), found.values.tolist(), found.counts.tolist()
            return [(*row, None) for row in zip(*columns, strict=True)]

        return rows
