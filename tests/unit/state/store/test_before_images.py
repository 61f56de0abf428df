"""I5 of one worker's states: of a key it counts what was kept first since the moment."""

from __future__ import annotations

import random

import numpy as np
import pytest

from meander.state.store import before_images
from meander.state.store.before_images import BeforeImages, Images

BINS = range(5)


@pytest.mark.parametrize("loose", [0, 40, 1 << 16])
@pytest.mark.parametrize("seed", range(5))
def test_what_is_kept_first_counts_however_much_is_loose(
    seed: int, loose: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(before_images, "UNSORTED_KEYS", loose)
    rng = random.Random(seed)
    known = rng.sample(BINS, 3)
    wanted: dict[int, Images] = {bin: {} for bin in known}
    found = BeforeImages(known)
    for _ in range(40):
        picked = [(rng.choice(BINS), rng.randrange(30)) for _ in range(rng.randint(0, 20))]
        keys = [f"{bin} {n}".encode() for bin, n in picked]
        states = [rng.random() for _ in picked]
        found.record(keys, np.array([bin for bin, _ in picked], np.int64), states, weight=8)
        for (bin, _), key, state in zip(picked, keys, states, strict=True):
            if bin in wanted:
                wanted[bin].setdefault(key, state)
        if rng.random() < 0.1 and len(wanted) > 1:
            found.drop(gone := rng.choice([*wanted]))
            del wanted[gone]
        if rng.random() < 0.2:
            assert found.of(asked := rng.choice([*wanted])) == wanted[asked]
    assert {bin: found.of(bin) for bin in found.bins} == wanted
    sizes = {b: sum(before_images.ENTRY_BYTES + len(key) + 8 for key in wanted[b]) for b in wanted}
    assert {bin: found.size_of(bin) for bin in wanted} == sizes
    assert found.size == sum(sizes.values())
    for bin in wanted:
        found.drop(bin)
    assert (found.size, bool(found)) == (0, False)


def test_what_was_kept_later_fills_in_what_was_not_kept_before() -> None:
    earlier, later = BeforeImages([1, 2]), BeforeImages([1])
    earlier.record([b"a"], np.array([1]), ["first"], weight=10)
    later.record([b"a", b"b"], np.array([1, 1]), ["second", "new"], weight=10)
    before = earlier.size
    earlier.add(1, later)
    assert earlier.of(1) == {b"a": "first", b"b": "new"}
    assert earlier.size == before + later.size
