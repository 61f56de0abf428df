"""A key's bin depends on the key's bytes alone, and bins are spread evenly."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meander.schemas.errors import MeanderError
from meander.state.keys.bins import BinSpace
from meander.state.keys.ids import Bin


@given(st.lists(st.binary()), st.integers(min_value=0, max_value=16))
def test_bins_of_many_keys_are_those_of_each(keys: list[bytes], bits: int) -> None:
    space = BinSpace(bits)
    bins = space.bins_of(space.hash_keys(keys))
    assert bins.dtype == np.int64
    assert bins.tolist() == [space.bin_of(key) for key in keys]
    assert all(0 <= bin < space.count for bin in bins)


@given(st.binary(), st.integers(min_value=0, max_value=15))
def test_more_bits_split_bins_and_mix_none(key: bytes, bits: int) -> None:
    assert BinSpace(bits + 1).bin_of(key) >> 1 == BinSpace(bits).bin_of(key)


def test_the_hash_is_the_same_in_every_process_and_release() -> None:
    hashes = BinSpace().hash_keys([b"", b"N14228"])
    assert hashes.dtype == np.uint64
    assert [f"{h:016x}" for h in hashes.tolist()] == ["2d06800538d394c2", "045bf808ce8196a6"]


def test_keys_spread_over_all_bins() -> None:
    space = BinSpace()
    bins = space.bins_of(space.hash_keys([b"N%d" % n for n in range(25_600)]))
    counts = np.bincount(bins, minlength=256)
    assert counts.min() > 50 and counts.max() < 200


@pytest.mark.parametrize("workers", [1, 2, 3, 7])
@pytest.mark.parametrize("bits", [0, 3, 8])
def test_first_owners_are_contiguous_and_even(bits: int, workers: int) -> None:
    space = BinSpace(bits)
    owners = [space.first_owner(Bin(b), workers) for b in range(space.count)]
    assert owners == sorted(owners)
    shares = [owners.count(w) for w in set(owners)]
    assert max(shares) - min(shares) <= 1
    assert len(set(owners)) == min(workers, space.count)


@pytest.mark.parametrize("bits", [-1, 17])
def test_a_flow_has_at_most_two_to_the_sixteen_bins(bits: int) -> None:
    with pytest.raises(MeanderError, match="0 to 16 bits"):
        BinSpace(bits)
