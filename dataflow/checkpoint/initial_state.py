"""Initial states of an operator: plain values, encoded as its store holds them.

Guarantees that a key is encoded like the keys of the flow's records, so that both meet. Guarantees
that a state is encoded as the operator itself would have written it. Other states are rejected with
their key. Cost: about 1 us per entry.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import cast

from meander.dataflow.api.nodes import FoldLogic, KeyedNode, ProcessLogic, TableJoinLogic
from meander.dataflow.api.plan import Plan
from meander.dataflow.operators.error_policy import describe, failure
from meander.dataflow.operators.keyed.column_fold import ColumnFold
from meander.dataflow.operators.keyed.logic import LARGEST, StateTooLargeError
from meander.dataflow.operators.stateless import KeyTooLargeError
from meander.schemas.errors import MeanderError, SetupError
from meander.state.encoding import codec
from meander.state.encoding.codec import DEFINED, PLAIN
from meander.state.encoding.columns import exact_column
from meander.state.encoding.expiring import with_due
from meander.state.keys.ids import COORDINATOR, Bin, ExecutionId, LayerId
from meander.state.layers.bootstrap_input import BootstrapInput, first_layer
from meander.state.layers.layer_writer import KEY_LIMIT
from meander.state.layers.manifest import Manifest
from meander.state.layers.topic import StateTopic
from meander.state.times.time import from_millis

_SHOWN = 200
"""The characters of a key in an error."""


class InitialStates:
    """An encoder of the initial states of one operator.

    >>> from meander import Flow, columns
    >>> from meander.dataflow.simulation.in_memory import ListSource
    >>> from meander.dataflow.api.plan import Plan
    >>> flow = Flow("flights")
    >>> flights = flow.source(ListSource([[]])).key_by(lambda flight: flight["plane"])
    >>> _ = flights.fold("delay", columns.mean("delay"))
    >>> mean = InitialStates(Plan(flow).keyed[0], now_ms=0)
    >>> [codec.decode(state) for state in mean.states(["N1"], [(2, 5)])]
    [(2, 5.0)]
    """

    def __init__(self, node: KeyedNode, now_ms: int) -> None:
        """Keys with a time to live are renewed at `now_ms`, in milliseconds since 1970. Raise
        SetupError for an operator whose states have no keys of the flow, or end by timers."""
        if isinstance(node.logic, TableJoinLogic) and node.logic.on is not None:
            raise SetupError(
                f"operator {node.name!r}", "each of its bins has a copy of the table",
                "load the rows into a join without copies, or let the table's topic have them",
            )  # fmt: skip
        if node.codec.name.startswith(DEFINED):
            definition = node.codec.name.removeprefix(DEFINED)
            raise SetupError(
                f"operator {node.name!r}", f"its states are those of {definition}, and timers end"
                " them", "let it start without states",
            )  # fmt: skip
        self._node, self._now_ms = node, now_ms

    @property
    def has_own_codec(self) -> bool:
        """Whether the operator has a codec of its own."""
        return self._node.codec.name != PLAIN.name

    @property
    def has_fields(self) -> bool:
        """Whether a state is a dict, so that fields are named."""
        match self._node.logic:
            case FoldLogic(init=init) | ProcessLogic(init=init):
                return isinstance(init(), dict)
            case TableJoinLogic():
                return True
        return False

    def keys(self, keys: Sequence[object]) -> list[bytes]:
        """Encode keys as the flow does. Raise `SetupError` for null or a value that is not
        plain."""
        if None in keys:
            raise self._unfit(None, "it is null", "leave out rows without a key")
        return self._each(keys, keys, _keys, "no flow can have this key")

    def states(self, keys: Sequence[object], states: Sequence[object]) -> list[bytes]:
        """Encode the states of some keys. Raise `SetupError` for a state that this operator cannot
        have."""
        if None in states:
            where = [key for key, state in zip(keys, states, strict=True) if state is None]
            raise self._unfit(where[0], "its state is null", "leave out rows without a state")
        encode = self._columns if isinstance(self._node.logic, ColumnFold) else self._values
        encoded = self._each(keys, states, encode, "its state does not fit")
        return self._with_due(self._movable(keys, encoded))

    def encoded(self, keys: Sequence[object], data: Sequence[object]) -> list[bytes]:
        """Return states that the operator's own codec has encoded; they are decoded as a check."""
        wrong = "the codec has not written its state"
        return self._with_due(self._movable(keys, self._each(keys, data, self._reencoded, wrong)))

    def _with_due(self, states: list[bytes]) -> list[bytes]:
        """Return encoded states with their due time, if the operator has one."""
        if self._node.expiry is None:
            return states
        due = self._node.expiry.due(from_millis(self._now_ms))
        return [with_due(due, state) for state in states]

    def _values(self, states: Sequence[object]) -> list[bytes]:
        return list(map(self._node.codec.encode, states))

    def _columns(self, states: Sequence[object]) -> list[bytes]:
        """Encode states of a fold over columns, each number in the type of its column."""
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

    def _reencoded(self, data: Sequence[object]) -> list[bytes]:
        known = [one for one in data if isinstance(one, bytes)]
        again = [self._node.codec.encode(self._node.codec.decode(one)) for one in known]
        if again != data:
            raise ValueError("decoding and encoding it gives other bytes")
        return again

    def _movable(self, keys: Sequence[object], states: list[bytes]) -> list[bytes]:
        """Return encoded states. Raise `SetupError` for one that is too large together with its
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
        """Encode all values at once; where one does not fit, find it, so that the error names its
        key."""
        try:
            return encode(values)
        except failure():  # an own codec is the user's
            for key, value in zip(keys, values, strict=True):
                try:
                    encode([value])
                except failure() as error:
                    cause = error.cause if isinstance(error, MeanderError) else describe(error)
                    remedy = "give a state that the operator itself would have"
                    raise self._unfit(key, f"{wrong}: {cause}", remedy) from error
            raise

    def _unfit(self, key: object, cause: str, remedy: str) -> SetupError:
        shown = "a key" if key is None else f"key {repr(key)[:_SHOWN]}"
        return SetupError(f"operator {self._node.name!r}, {shown}", cause, remedy)


def write(
    plan: Plan, states: Mapping[str, Mapping[object, object]], topic: StateTopic, now_ms: int
) -> list[Manifest]:
    """Write layers of initial states, by operator and key, to a topic in memory; wait until it has
    them. Keys with a time to live are renewed at `now_ms`.

    Raise `SetupError` for states that the flow cannot have.
    """
    nodes = {keyed.name: keyed for keyed in plan.keyed}
    sequence, written = count(), []
    for operator, found in states.items():
        if operator not in nodes:
            raise SetupError(
                f"operator {operator!r}",
                "the flow has no stateful operator of that name",
                f"name one of {', '.join(nodes)}",
            )
        initial = InitialStates(nodes[operator], now_ms)
        keys = initial.keys([*found])
        entries: dict[Bin, dict[bytes, bytes]] = {}
        for key, state in zip(keys, initial.states([*found], [*found.values()]), strict=True):
            entries.setdefault(plan.flow.space.bin_of(key), {})[key] = state
        for bin, some in entries.items():
            layer = LayerId(ExecutionId(0), COORDINATOR, next(sequence))
            layer_input, codec_name = BootstrapInput(operator), nodes[operator].codec_name
            layer_input.add(sorted(some), [some[key] for key in sorted(some)])
            layer_input.end()
            writer = first_layer(layer_input, layer, operator, bin, codec_name, topic)
            while not writer.step(len(some)):
                """A topic in memory answers within two steps."""
            written.append(writer.manifest)
    return written


def _keys(keys: Sequence[object]) -> list[bytes]:
    encoded = codec.encode_keys(keys)
    if (size := max(map(len, encoded), default=0)) > KEY_LIMIT:
        raise KeyTooLargeError(size)
    return encoded


def _column(values: Sequence[object], dtype: str) -> list[object]:
    return (
        list(values)
        if dtype == "object"
        else cast(list[object], exact_column(values, dtype).tolist())
    )
