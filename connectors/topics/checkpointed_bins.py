"""Open the states of an operator in a checkpoint on Kafka, whether the flow runs or not.

Guarantees that nothing is written to Kafka. A running flow may meanwhile delete the layers of a
checkpoint that it no longer retains; the read then fails. Cost: a database on disk, and two
consumers.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from tempfile import TemporaryDirectory

from meander.connectors.kafka.client import Settings
from meander.connectors.topics.internal_topics import TopicNames
from meander.connectors.topics.state import KafkaStateTopic
from meander.state.checkpoint.bin_reader import BinReader
from meander.state.checkpoint.checkpoint import Checkpoint
from meander.state.encoding.codec import PLAIN, StateCodec
from meander.state.encoding.expiring import codec_name
from meander.state.store.store import Database

BUDGET_BYTES = 64 << 20
"""The memory for the entries of a bin, before they lie on disk."""
_POLL_SECONDS = 0.25
"""The seconds between two looks for an answer of Kafka, and for a lost connection."""


@contextmanager
def open_bins(
    settings: Settings, names: TopicNames, checkpoint: Checkpoint, operator: str
) -> Iterator[BinReader]:
    """Open the bins of an operator for a block; states stay as their codec has encoded them."""
    arrived = threading.Event()

    def wait() -> None:
        arrived.wait(_POLL_SECONDS)
        arrived.clear()

    codec, expires = written_codec(checkpoint, operator)
    with ExitStack() as opened:
        folder = opened.enter_context(TemporaryDirectory(prefix="meander-"))
        database = opened.enter_context(closing(Database(folder, BUDGET_BYTES)))
        state, in_flight = (
            opened.enter_context(closing(KafkaStateTopic(settings, topic, 0, arrived)))
            for topic in (names.state, names.in_flight)
        )
        store = database.store(operator, codec, expires=expires)
        yield BinReader(checkpoint, operator, store, state, in_flight, wait)


class EncodedStates:
    """A codec that leaves states as another one has encoded them."""

    def __init__(self, name: str) -> None:
        self.name = name

    def encode(self, state: object, /) -> bytes:
        """Return the state, which is bytes."""
        assert isinstance(state, bytes)
        return state

    def decode(self, data: bytes, /) -> object:
        """Return the bytes."""
        return data


def written_codec(checkpoint: Checkpoint, operator: str) -> tuple[StateCodec, bool]:
    """Return the codec of an operator's states in a checkpoint, and whether they expire."""
    layers = (
        layer
        for manifest in checkpoint.manifests
        if manifest.operator == operator
        for layer in manifest.layers
    )
    written = {layer.codec for layer in layers}
    expiring = codec_name("")
    own = {name.removesuffix(expiring) for name in written} - {PLAIN.name}
    codec: StateCodec = EncodedStates(min(own)) if own else PLAIN
    return codec, any(name.endswith(expiring) for name in written)
