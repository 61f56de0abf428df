"""The states that an operator starts from: plain values as its store holds them.

Guarantees that a key is encoded as those of the flow's records are, so that both meet, and a state
as the operator itself would have written it; what it could not have is refused, with its key.
Cost: about 1 us an entry.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import cast

from meander.dataflow.api.nodes import KeyedNode
from meander.dataflow.api.plan import Plan
from meander.dataflow.operators.error_policy import failure, told
from meander.dataflow.operators.keyed.columns import ColumnFold
from meander.dataflow.operators.keyed.logic import LARGEST, StateTooLargeError
from meander.dataflow.operators.stateless import KeyTooLargeError
from meander.schemas.errors import MeanderError, SetupError
from meander.state.encoding import codec
from meander.state.encoding.codec import PLAIN
from meander.state.encoding.columns import exact
from meander.state.keys.ids import COORDINATOR, Bin, ExecutionId, LayerId
from meander.state.layers.bootstrap_input import Given, first_layer
from meander.state.layers.layer_writer import KEY_LIMIT
from meander.state.layers.manifest import Manifest
from meander.state.layers.topic import StateTopic

_SHOWN = 200
"""Characters of a key in an error."""


class Initial:
    """Encodes what one operator starts from.

    >>> from meander import Flow, columns
    >>> from meander.dataflow.simulation.in_memory import ListSource
    >>> from meander.dataflow.api.plan import Plan
    >>> flow = Flow("flights")
    >>> flights = flow.source(ListSource([[]])).key_by(lambda flight: flight["plane"])
    >>> _ = flights.fold("delay", columns.mean("delay"))
    >>> mean = Initial(Plan(flow).keyed[0])
    >>> [codec.decode(state) for state in mean.states(["N1"], [(2, 5)])]
    [(2, 5.0)]
    """

    def __init__(self, node: KeyedNode) -> None:
        self._node = node

    @property
    def own(self) -> bool:
        """Whether the operator has a codec of its own."""
        return self._node.codec.name != PLAIN.name

    @property
    def named(self) -> bool:
        """Whether a state is a dict: what has fields is one then, by their names."""
        logic = self._node.logic
        return not isinstance(logic, ColumnFold) and isinstance(logic.init(), dict)

    def keys(self, keys: Sequence[object]) -> list[bytes]:
        """Keys as the flow's are. Raises SetupError for one that is null, or no plain value."""
        if None in keys:
            raise self._unfit(None, "it is null", "leave out what has no key")
        return self._each(keys, keys, _keys, "it is none that a flow could have")

    def states(self, keys: Sequence[object], states: Sequence[object]) -> list[bytes]:
        """The states of these keys, encoded. Raises SetupError for what is no state of this
        operator."""
        if None in states:
            where = [key for key, state in zip(keys, states, strict=True) if state is None]
            raise self._unfit(where[0], "its state is null", "leave out what has no state")
        encode = self._columns if isinstance(self._node.logic, ColumnFold) else self._values
        return self._movable(keys, self._each(keys, states, encode, "its state does not fit"))

    def encoded(self, keys: Sequence[object], data: Sequence[object]) -> list[bytes]:
        """The same where the operator's own codec has encoded them: they are read for a test."""
        wrong = "its state is none that the codec has written"
        return self._movable(keys, self._each(keys, data, self._again, wrong))

    def _values(self, states: Sequence[object]) -> list[bytes]:
        return list(map(self._node.codec.encode, states))

    def _columns(self, states: Sequence[object]) -> list[bytes]:
        """States of a fold over columns, as it writes them: each number of its column's type."""
        logic, layout = self._node.logic, self._node.layout
        assert isinstance(logic, ColumnFold)
        rows = [state if isinstance(state, tuple) else (state,) for state in states]
        for row in rows:
            if len(row) != len(logic.dtypes):
                columns = ", ".join(logic.dtypes)
                raise ValueError(f"it has {len(row)} values, and the fold's columns are {columns}")
        parts = map(_column, zip(*rows, strict=True), logic.dtypes)
        plain = list(zip(*parts, strict=True))
        if layout is not None and len(layout.dtypes) == 1:
            return self._values([number for (number,) in plain])
        return self._values(plain)

    def _again(self, data: Sequence[object]) -> list[bytes]:
        known = [one for one in data if isinstance(one, bytes)]
        again = [self._node.codec.encode(self._node.codec.decode(one)) for one in known]
        if again != data:
            raise ValueError("read and written again it is other bytes")
        return again

    def _movable(self, keys: Sequence[object], states: list[bytes]) -> list[bytes]:
        """The encoded states of keys. Raises SetupError for one that is too large beside its
        key."""
        for key, state in zip(keys, states, strict=True):
            if len(state) <= LARGEST - KEY_LIMIT:
                continue
            size = len(codec.encode_key(key))
            if len(state) > LARGEST - size:
                too_large = StateTooLargeError(len(state), size)
                raise self._unfit(key, too_large.cause, too_large.remedy)
        return states

    def _each(
        self,
        keys: Sequence[object],
        values: Sequence[object],
        encode: Callable[[Sequence[object]], list[bytes]],
        wrong: str,
    ) -> list[bytes]:
        """All at once; where one does not fit it is looked for, so that the error names its key."""
        try:
            return encode(values)
        except failure():  # an own codec is the user's
            for key, value in zip(keys, values, strict=True):
                try:
                    encode([value])
                except failure() as error:
                    cause = error.cause if isinstance(error, MeanderError) else told(error)
                    remedy = "give what the operator itself would have kept"
                    raise self._unfit(key, f"{wrong}: {cause}", remedy) from error
            raise

    def _unfit(self, key: object, cause: str, remedy: str) -> SetupError:
        shown = "a key" if key is None else f"key {repr(key)[:_SHOWN]}"
        return SetupError(f"operator {self._node.name!r}, {shown}", cause, remedy)


def write(
    plan: Plan, states: Mapping[str, Mapping[object, object]], topic: StateTopic
) -> list[Manifest]:
    """Layers of the states with which a flow starts, by operator and key; asks a topic in memory
    until they lie there. Raises SetupError for states that the flow could not have."""
    nodes = {keyed.name: keyed for keyed in plan.keyed}
    sequence, written = count(), []
    for operator, found in states.items():
        if operator not in nodes:
            raise SetupError(f"operator {operator!r}", "the flow has no state of that name",
                             f"name one of {', '.join(nodes)}")  # fmt: skip
        initial = Initial(nodes[operator])
        keys = initial.keys([*found])
        entries: dict[Bin, dict[bytes, bytes]] = {}
        for key, state in zip(keys, initial.states([*found], [*found.values()]), strict=True):
            entries.setdefault(plan.flow.space.bin_of(key), {})[key] = state
        for bin, some in entries.items():
            layer = LayerId(ExecutionId(0), COORDINATOR, next(sequence))
            given, codec_name = Given(operator), nodes[operator].codec.name
            given.add(sorted(some), [some[key] for key in sorted(some)])
            given.end()
            extraction = first_layer(given, layer, operator, bin, codec_name, topic)
            while not extraction.step(len(some)):
                """A topic in memory answers each time it is asked, or at the next."""
            written.append(extraction.manifest)
    return written


def _keys(keys: Sequence[object]) -> list[bytes]:
    encoded = codec.encode_keys(keys)
    if (size := max(map(len, encoded), default=0)) > KEY_LIMIT:
        raise KeyTooLargeError(size)
    return encoded


def _column(values: Sequence[object], dtype: str) -> list[object]:
    return list(values) if dtype == "object" else cast(list[object], exact(values, dtype).tolist())
