"""A checkpoint is read as it was written."""

from __future__ import annotations

import pytest

from schemas.errors import MeanderError
from state.bins import BinSpace
from state.checkpoint import Checkpoint
from state.ids import Bin, Incarnation, LayerId, WorkerId
from state.manifest import Description, LayerPointer, Manifest
from state.topic import Place

LAYER = LayerPointer(
    LayerId(Incarnation(7), WorkerId(-1), 3 << 16 | 5), Description(0, 0, 0), "base", 2, 9,
    "msgpack", (Place(b"layer/7/-1/196613/0", 1, 30, 99), Place(b"layer/7/-1/196613/1", 1, 31, 9)),
)  # fmt: skip
MANIFEST = Manifest("totals", Bin(5), epoch=0, layers=(LAYER,))


def test_a_checkpoint_comes_back_from_its_bytes() -> None:
    others = Manifest("mean", Bin(0), epoch=0, layers=()), Manifest("mean", Bin(1), 0, (LAYER,))
    checkpoint = Checkpoint(3, Incarnation(7), BinSpace(4), 1_700_000_000_000, (MANIFEST, *others))
    assert Checkpoint.from_bytes(checkpoint.to_bytes()) == checkpoint
    assert checkpoint.operators == {"totals", "mean"}


def test_a_checkpoint_has_the_bytes_that_were_agreed_on() -> None:
    checkpoint = Checkpoint(3, Incarnation(7), BinSpace(4), 150, (MANIFEST,))
    assert checkpoint.to_bytes().hex() == (
        "02"  # format version
        "060e08ac02"  # number, incarnation, bits, millis
        f"02{_length(MANIFEST)}{MANIFEST.to_bytes().hex()}00"  # one manifest, and no more
        "00000000000000"  # a cut at time 0, of no members and owners, with nothing under way
    )


def _length(manifest: Manifest) -> str:
    """Of a manifest of 64 bytes or more, as Avro writes it."""
    twice = 2 * len(manifest.to_bytes())
    return bytes([twice & 127 | 128, twice >> 7]).hex()


def test_another_format_version_is_refused_by_name() -> None:
    data = Checkpoint(1, Incarnation(7), BinSpace(4), 150, ()).to_bytes()
    with pytest.raises(MeanderError, match="format 'checkpoint': its version is 3, .* reads 2"):
        Checkpoint.from_bytes(b"\x03" + data[1:])
