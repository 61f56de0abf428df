"""A checkpoint is read as it was written."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from meander.schemas.errors import MeanderError
from meander.state.checkpoint import delta_bundles
from meander.state.checkpoint.arrangements import KeptArrangement, OperatorFrontier, UnreadRows
from meander.state.checkpoint.checkpoint import (
    Checkpoint,
    Cut,
    InputLineage,
    Notification,
    Piece,
    Position,
    ReplayFrom,
)
from meander.state.checkpoint.delta_bundles import (
    _FORMAT,
    CHECKSUM_BYTES,
    Bundle,
    BundleCorrupt,
    Delta,
)
from meander.state.keys.bins import BinSpace
from meander.state.keys.ids import Bin, ExecutionId, LayerId, WorkerId
from meander.state.layers.layer import DeltaEntries
from meander.state.layers.manifest import Description, LayerPointer, Manifest
from meander.state.layers.topic import RecordLocation

LAYER = LayerPointer(
    LayerId(ExecutionId(7), WorkerId(-1), 3 << 16 | 5), Description(0, 0, 0), "base", 2, 9,
    "msgpack", (
        RecordLocation(b"layer/7/-1/196613/0", 1, 30, 99),
        RecordLocation(b"layer/7/-1/196613/1", 1, 31, 9),
    ),
)  # fmt: skip
MANIFEST = Manifest("totals", Bin(5), epoch=0, layers=(LAYER,))
ZERO, ONE = WorkerId(0), WorkerId(1)
CUT = Cut(
    time=40,
    members=(ZERO, ONE),
    owners=(ZERO, ONE),
    deltas=(Delta("totals", Bin(5), DeltaEntries([b"k"], [b"s"], [(41, b"k")])),),
    positions=(Position("lines", 0, ONE, 12, None, 30, 29, 31),),
    notifications=(Notification("totals", (41, 2), b"k"),),
    pieces=(Piece("totals", 0, ONE, 41, 3, (RecordLocation(b"p", 2, 8, 77),), True, b"\x02"),),
)
CHECKPOINT = Checkpoint(3, ExecutionId(7), BinSpace(1), 150, (MANIFEST,), CUT)
LINEAGE = InputLineage(
    "totals", 0, ("source 'lines'", "operator 'key_by'", "operator 'key_by exchange'"),
    ("operator 'totals'",),
)  # fmt: skip
PARTS = RecordLocation(b"p/0", 2, 8, 77), RecordLocation(b"p/1", 2, 9, 5)
GOLDEN_CHECKPOINT = replace(
    CHECKPOINT, savepoint="v1", policy="p", alignment_ms=1.5, write_ms=20.0,
    cut=replace(
        CUT,
        bundles=(Bundle("totals", (Bin(1),), RecordLocation(b"b", 0, 1, 2)),),
        pieces=(CUT.pieces[0]._replace(locations=PARTS),),
        replay_starts=(ReplayFrom("counts", 40), ReplayFrom("totals", 0)),
        lineage=(LINEAGE,),
        arrangements=(KeptArrangement("totals", "input", "lines", 0),),
        frontiers=(OperatorFrontier("totals", 41),),
        unread_rows=(UnreadRows("totals", 1, Bin(2), ((3, 1), (4, 0))),),
    ),
)  # fmt: skip
GOLDEN = """
    02060e02ac020476310270000000000000f83f000000000000344002b401010c746f74616c730a00
    020e018a8018000e6d73677061636b00000000000004000000000000000904266c617965722f372f
    2d312f3139363631332f30023cc601266c617965722f372f2d312f3139363631332f31023e120000
    00500400020004000200020c746f74616c730a02026b000202730000020252026b0000020c746f74
    616c73020200026200020400020a6c696e6573000218003c3a3e00020c746f74616c730204520400
    026b00020c746f74616c73000200520606702f3004109a010206702f3104120a000102020200040c
    636f756e7473500c746f74616c730000020c746f74616c7300061c736f7572636520276c696e6573
    27226f70657261746f7220276b65795f627927346f70657261746f7220276b65795f627920657863
    68616e6765270002226f70657261746f722027746f74616c73270000020c746f74616c730a696e70
    75740a6c696e65730000020c746f74616c735200020c746f74616c73020404020406020002040800
    0000000000
"""
"""The bytes of `GOLDEN_CHECKPOINT` in format version 2."""
HEAD = (
    "02060e02ac020476310270000000000000f83f000000000000344000000000000000000000000000"
    "000406702f3004109a0106702f3104120a00dce6d5a6c2b3dcb9a801"
)


def test_a_checkpoint_comes_back_from_its_bytes() -> None:
    others = Manifest("mean", Bin(0), epoch=0, layers=()), Manifest("mean", Bin(1), 0, (LAYER,))
    checkpoint = Checkpoint(3, ExecutionId(7), BinSpace(4), 1_700_000_000_000, (MANIFEST, *others))
    assert Checkpoint.from_bytes(checkpoint.to_bytes()) == checkpoint
    assert checkpoint.operators == {"totals", "mean"}


def test_version_2_has_the_bytes_that_were_agreed_on() -> None:
    golden = bytes.fromhex(GOLDEN)
    assert GOLDEN_CHECKPOINT.to_bytes() == golden
    assert Checkpoint.from_bytes(golden) == GOLDEN_CHECKPOINT


def test_of_the_parts_of_a_cut_the_latest_time_says_from_when_on_results_come_again() -> None:
    """An earlier one holds on one worker alone."""
    parts = (
        Cut(replay_starts=(ReplayFrom("a", 7), ReplayFrom("b", 1))),
        Cut(replay_starts=(ReplayFrom("a", 5),)),
    )
    whole = replace(CHECKPOINT, cut=Cut(replay_starts=(ReplayFrom("a", 6), ReplayFrom("b", 2))))
    joined = Checkpoint.assemble(whole, [replace(CHECKPOINT, cut=part) for part in parts])
    assert dict(joined.cut.replay_starts) == {"a": 7, "b": 2}


def test_a_head_names_the_parts_and_the_checksum_of_what_was_cut() -> None:
    whole, data = replace(GOLDEN_CHECKPOINT, parts=PARTS), GOLDEN_CHECKPOINT.to_bytes()
    assert whole.header(b"ab").hex() == HEAD
    assert Checkpoint.from_bytes(whole.header(data), lambda _: [data[:50], data[50:]]) == whole


@pytest.mark.parametrize("spoilt", [
    lambda one: [one[50:], one[:50]], lambda one: [one[:50]], lambda one: [one, one[:50]],
    lambda one: [one[:50], bytes([one[50] ^ 1]) + one[51:]],
])  # fmt: skip
def test_parts_that_are_not_what_was_cut_are_no_checkpoint(
    spoilt: Callable[[bytes], list[bytes]],
) -> None:
    """Another order, fewer, more, other bytes."""
    data = GOLDEN_CHECKPOINT.to_bytes()
    head = replace(GOLDEN_CHECKPOINT, parts=PARTS).header(data)
    with pytest.raises(
        MeanderError, match="checkpoint 3: its 2 parts differ from the written ones"
    ):
        Checkpoint.from_bytes(head, lambda _: spoilt(data))
    with pytest.raises(MeanderError, match="checkpoint 3: it lies in parts"):
        Checkpoint.from_bytes(head)


def test_another_format_version_is_refused_by_name() -> None:
    data = CHECKPOINT.to_bytes()
    with pytest.raises(
        MeanderError, match="'checkpoint': its version is 9, but this program reads 2"
    ):
        Checkpoint.from_bytes(b"\x09" + data[1:])


def test_a_bundle_has_the_bytes_that_were_agreed_on() -> None:
    remainder = DeltaEntries([b"a", b"bc"], [b"1", b"2"], [(5, b"a")])
    data = delta_bundles.encode_deltas([Delta("totals", Bin(3), remainder)])
    assert data[8:].hex() == (
        "02"  # format version
        "02" + "0c" + b"totals".hex() + "06"  # one bin: of whom, and which
        "04026104626300"  # its keys
        "040231023200"  # and states
        "00"  # no forgotten keys
        "02020a026100"  # that there are timers: one
        "00"
    )  # fmt: skip
    assert delta_bundles.decode_deltas(data) == [Delta("totals", Bin(3), remainder)]


@pytest.mark.parametrize("seed", range(20))
def test_a_bundle_is_what_avros_own_writer_writes(seed: int) -> None:
    rng = random.Random(seed)

    def some(most: int) -> list[bytes]:
        return [rng.randbytes(rng.choice([0, 1, 9, 70])) for _ in range(rng.randint(0, most))]

    def remainder() -> DeltaEntries:
        keys = some(80)
        timers = [(rng.randint(-(1 << 63), (1 << 63) - 1), key) for key in some(3)]
        states = [None if rng.random() < 0.2 else b"s" * len(key) for key in keys]
        return DeltaEntries(keys, states, rng.choice([None, timers]))

    bins = (Bin(rng.randrange(1 << 16)) for _ in range(rng.randint(1, 5)))
    many = [Delta(rng.choice(["totals", "Füße"]), bin, remainder()) for bin in bins]
    written = _FORMAT.encode({"deltas": list(map(delta_bundles.delta_record, many))})
    assert delta_bundles.encode_deltas(many)[CHECKSUM_BYTES:] == written
    assert delta_bundles.decode_deltas(delta_bundles.encode_deltas(many)) == many


@pytest.mark.parametrize("place", [3, 12, 30])
def test_a_bundle_that_was_changed_is_refused(place: int) -> None:
    data = delta_bundles.encode_deltas(
        [Delta("totals", Bin(3), DeltaEntries([b"abcdef"], [b"12"], None))]
    )
    changed = data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
    with pytest.raises(BundleCorrupt, match="its checksum is wrong"):
        delta_bundles.decode_deltas(changed)
