"""Reading and writing a store's states, as a test that holds no batch does."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from meander.state.encoding.cells import ABSENT
from meander.state.store.store import Store


def put(store: Store, bins: Sequence[int], keys: Sequence[bytes], states: Sequence[object]) -> None:
    """Set sealed states; of equal keys the last wins."""
    with store.open_batch(keys, np.array(bins, np.int64)) as batch:
        for slot, state in zip(batch.slots.tolist(), states, strict=True):
            batch.sealed[slot] = state


def got(store: Store, bins: Sequence[int], keys: Sequence[bytes]) -> dict[bytes, object]:
    """The sealed states of those keys that have one."""
    with store.open_batch(keys, np.array(bins, np.int64)) as batch:
        states = {k: batch.sealed[slot] for k, slot in zip(keys, batch.slots.tolist(), strict=True)}
        return {key: state for key, state in states.items() if state is not ABSENT}


def forget(
    store: Store,
    bins: Sequence[int],
    keys: Sequence[bytes],
    again: Sequence[bytes] = (),
    to: object = None,
) -> None:
    """Forget keys; those of `again` get a state in the same batch."""
    with store.open_batch(keys, np.array(bins, np.int64)) as batch:
        slots = dict(zip(keys, batch.slots.tolist(), strict=True))
        batch.forget(batch.slots)
        for key in again:
            batch.sealed[slots[key]] = to
