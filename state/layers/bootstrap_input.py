"""Bootstrap input: the entries of a layer that a bootstrap adds in key order.

Guarantees that a layer holds no key twice. The caller bounds the entries that are added and not yet
read (I6). Cost: about 0.1 us per entry.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import chain, compress
from operator import eq
from pathlib import Path
from typing import Final

from meander.schemas.errors import SetupError
from meander.state.encoding.codec import decode
from meander.state.encoding.timers import Timers
from meander.state.keys.ids import Bin, LayerId
from meander.state.layers.chunk import Head
from meander.state.layers.layer import Entries
from meander.state.layers.layer_writer import LayerWriter
from meander.state.layers.manifest import Description, LayerPointer
from meander.state.layers.topic import StateTopic
from meander.state.store.sst_writer import TableWriter
from meander.state.store.store import bin_prefix
from meander.state.times.time import MIN_TIME

_SHOWN: Final = 200
"""The most characters of a key in an error."""


class BootstrapInput:
    r"""A layer input that yields given entries: `add` them in key order, then `end`.

    >>> given = BootstrapInput("totals")
    >>> given.add([b"\x01", b"\x02"], [b"a", b"b"])
    >>> given.read(1), given.pending, given.read(9), given.read(9)
    (Entries(keys=[b'\x01'], states=[b'a']), 1, Entries(keys=[b'\x02'], states=[b'b']), None)
    >>> given.end()
    >>> given.read(9)
    Entries(keys=[], states=[])
    """

    timers: Timers = ()

    def __init__(self, operator: str) -> None:
        self._operator = operator
        self._keys: Sequence[bytes] = ()
        self._states: Sequence[bytes] = ()
        self._read, self._ended = 0, False
        self._last: bytes | None = None

    @property
    def pending(self) -> int:
        """Return the number of entries that the layer writer has not read."""
        return len(self._keys) - self._read

    def add(self, keys: Sequence[bytes], states: Sequence[bytes]) -> None:
        """Add the next entries, once the writer has read all earlier entries. Raise SetupError for
        a repeated key."""
        assert not self.pending, "the writer has not read all earlier entries"
        for key in compress(keys, map(eq, keys, chain((self._last,), keys))):
            shown = repr(decode(key))[:_SHOWN]
            raise SetupError(
                f"operator {self._operator!r}, key {shown}", "it has two states",
                "give one state for each key",
            )  # fmt: skip
        self._keys, self._states, self._read, self._last = keys, states, 0, keys[-1]

    def end(self) -> None:
        """End the input: no entries follow."""
        self._ended = True

    def read(self, most: int) -> Entries | None:
        """Return entries as `LayerInput` does."""
        if not self.pending and not self._ended:
            return None
        start, self._read = self._read, min(self._read + most, len(self._keys))
        keys, states = self._keys[start : self._read], self._states[start : self._read]
        return Entries(list(keys), list(states))

    def close(self) -> None:
        """Do nothing, as no fetch is open."""


def first_layer(
    input: BootstrapInput,
    id: LayerId,
    operator: str,
    bin: Bin,
    codec: str,
    topic: StateTopic,
    folder: Path | None = None,
) -> LayerWriter:
    """Write given entries as the first layer of a bin, which covers all times before the flow's
    first record. The writer uses tables where there is a folder for them."""
    head = Head(operator, bin, id, "base", codec, Description(MIN_TIME, MIN_TIME, MIN_TIME))
    table = None if folder is None else partial(TableWriter, folder, bin_prefix(operator, bin))
    return LayerWriter(head, input, topic, _alone, table)


def _alone(layer: LayerPointer) -> tuple[LayerPointer, ...]:
    return (layer,)
