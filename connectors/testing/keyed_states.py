"""The states of a stateful operator by key, also by keys that no dict takes.

Guarantees that a look-up finds the key that the operator takes for the same one: an equal value
with equal types at every depth. So a dict finds its key in any order, and 1 is another key than
1.0. Cost: the encoding of one key per look-up.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from meander.state.encoding import codec
from meander.state.encoding.named_types import NamedTypes, use


class KeyedStates(Mapping[object, object]):
    """A mapping from keys to states.

    >>> from meander.state.encoding.named_types import in_use
    >>> states = KeyedStates({codec.encode_key(["a", 1]): 7, codec.encode_key("b"): 8}, in_use())
    >>> states[["a", 1]], states["b"], ["c"] in states
    (7, 8, False)
    >>> states == {"b": 8}, len(states), states
    (False, 2, {['a', 1]: 7, 'b': 8})
    """

    def __init__(self, states: Mapping[bytes, object], types: NamedTypes) -> None:
        """`states` are by encoded keys, and `types` are those that the flow names."""
        self._states, self._types = states, types

    def __getitem__(self, key: object) -> object:
        """Return the state of a key. Raise KeyError for a key without one."""
        if (encoded := self._encode(key)) not in self._states:
            raise KeyError(key)
        return self._states[encoded]

    def __iter__(self) -> Iterator[object]:
        """Yield the keys."""
        use(self._types)
        return map(codec.decode, [*self._states])

    def __len__(self) -> int:
        """Return the number of keys."""
        return len(self._states)

    def __eq__(self, other: object) -> bool:
        """Return whether another mapping has equal states for the same keys."""
        if not isinstance(other, Mapping):
            return NotImplemented
        return self._states == {self._encode(key): state for key, state in other.items()}

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        """Return the states as a dict shows them."""
        shown = (f"{key!r}: {state!r}" for key, state in self.items())
        return f"{{{', '.join(shown)}}}"

    def _encode(self, key: object) -> bytes:
        use(self._types)
        return codec.encode_key(key)
