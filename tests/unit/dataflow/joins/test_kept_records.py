"""The records that wait for others stand in the order of own times and arrival, in any blocks."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from meander.dataflow.joins import kept_records
from meander.dataflow.joins.kept_records import MAX_BLOCKS, Block, KeptRecords, KeptSide
from meander.state.encoding import codec

Blocks = dict[tuple[int, int], bytes]


def stored(kept: KeptRecords, blocks: Blocks) -> Any:
    """Store records as an operator does, and return the state of their key."""
    for number, side in enumerate(kept.sides):
        for removed in side.removed:
            blocks.pop((number, removed), None)
        blocks.update({(number, b.number): codec.encode(b.stored) for b in side.changed()})
    return None if kept.stored is None else codec.encode(kept.stored)


def opened(state: bytes | None, blocks: Blocks) -> KeptRecords:
    found = None if state is None else codec.decode(state)
    return KeptRecords(found, lambda side, number: codec.decode(blocks[side, number]))


def listed(side: KeptSide, first: int, last: int) -> list[tuple[int, bytes]]:
    return [(block.times[i], block.values[i]) for block, i in side.between(first, last)]


@pytest.mark.parametrize("rows", [1, 2, 5, 64])
@pytest.mark.parametrize("seed", range(5))
def test_records_are_those_of_a_sorted_list(
    rows: int, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_records, "ROWS", rows)
    rng, blocks, state = Random(seed), Blocks(), None
    wanted: list[list[tuple[int, bytes]]] = [[], []]
    for n in range(150):
        kept = opened(state, blocks)
        for _ in range(rng.choice([1, 3])):
            side, time = rng.randrange(2), n + rng.choice([0, 0, -7, 20])
            kept.sides[side].insert(time, False, b"%d" % n)
            wanted[side].append((time, b"%d" % n))
            wanted[side].sort(key=lambda record: record[0])
        first, last = sorted((n + rng.randint(-40, 30), n + rng.randint(-40, 30)))
        for side in (0, 1):
            found = listed(kept.sides[side], first, last)
            assert found == [one for one in wanted[side] if first <= one[0] <= last]
            if rng.random() < 0.3:
                end = n - rng.choice([5, 30, 60])
                dropped = [one for one in wanted[side] if one[0] <= end]
                assert kept.sides[side].drop_until(end) == bool(dropped)
                wanted[side] = wanted[side][len(dropped) :]
        state = stored(kept, blocks)
    kept = opened(state, blocks)
    for side in (0, 1):
        assert listed(kept.sides[side], -99, 999) == wanted[side]
        kept.sides[side].drop_until(999)
    assert stored(kept, blocks) is None
    assert not blocks, "nothing remains of a key whose records have gone"


def test_an_insertion_into_many_blocks_reads_and_changes_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A record of a hot key costs one block, not all records of the key."""
    monkeypatch.setattr(kept_records, "ROWS", 4)
    blocks, kept = Blocks(), KeptRecords(None, lambda side, number: None)
    for time in range(1000):
        kept.sides[0].insert(time, False, b"x")
    state = stored(kept, blocks)
    assert len(blocks) == 250, "full blocks stay as they are"
    read = list[int]()

    def block(side: int, number: int) -> Any:
        read.append(number)
        return codec.decode(blocks[side, number])

    kept = KeptRecords(codec.decode(state), block)
    kept.sides[0].insert(500, False, b"y")
    assert len(read) == 1
    assert len([*kept.sides[0].changed()]) == 2, "a full block is divided"


def test_a_large_record_has_a_block_alone() -> None:
    kept, blocks = KeptRecords(None, lambda side, number: None), Blocks()
    for time in range(3):
        kept.sides[0].insert(time, False, b"x" * 300_000)
    state = stored(kept, blocks)
    assert len(state) < 100
    assert sorted(map(len, blocks.values())) == pytest.approx([300_000] * 3, rel=0.01)


def test_a_side_is_full_with_the_most_blocks() -> None:
    side = KeptSide(0, ([], [], []), lambda side, number: None)
    side._blocks = [Block(n, n, [n], [False], [b""]) for n in range(1, MAX_BLOCKS)]
    assert not side.is_full
    side._blocks.append(Block(MAX_BLOCKS, MAX_BLOCKS, [MAX_BLOCKS], [False], [b""]))
    assert side.is_full
