"""I5 of one worker's states: what is gone back to is a checkpoint, whatever has changed since."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from meander.state.encoding.codec import encode, encode_sealed, seal
from meander.state.encoding.columns import ColumnLayout
from meander.state.encoding.timers import Timers
from meander.state.keys.ids import Bin, CheckpointId, ExecutionId
from meander.state.store.spill import SpillStore
from meander.state.store.store import Database, Store
from tests.support.state.store_access import forget, put

LIFE = ExecutionId(7)
KEYS, BINS = 600, (Bin(0), Bin(3), Bin(4))
SMALL = 1 << 20


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    yield from opened(tmp_path, 16 << 20)


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Database]:
    yield from opened(tmp_path / "small", SMALL)


def opened(path: Path, budget: int) -> Iterator[Database]:
    with closing(Database(path, budget)) as database:
        yield database


def key(bin: Bin, n: int) -> bytes:
    return encode((int(bin), n))


def change(store: Store, rng: random.Random, wide: int = 0) -> None:
    """Change some keys of a bin, a few of which are new; forget some of them before or then."""
    bin = rng.choice(BINS)
    keys = [key(bin, n) for n in sorted(rng.sample(range(KEYS), rng.randint(1, 80)))]
    state = seal((rng.getrandbits(40), "s" * wide))
    if rng.random() < 0.3:
        forget(store, [bin] * len(keys), keys)
    put(store, [bin] * len(keys), keys, [state] * len(keys))
    forgotten = rng.sample(keys, len(keys) // 4)
    forget(store, [bin] * len(forgotten), forgotten)


def count(store: Store, keys: list[bytes], number: int) -> None:
    with store.open_batch(keys, np.full(len(keys), BINS[0])) as batch:
        batch.numbers.write(batch.slots, (np.full(len(keys), number),))


def scanned(store: Store, bin: Bin) -> dict[bytes, bytes]:
    return dict(store.scan(bin))


def at(number: int) -> CheckpointId:
    return CheckpointId(LIFE, number)


class Checkpointed:
    """A store of which checkpoints are taken, exist, or are given up, as its states change."""

    def __init__(self, store: Store, rng: random.Random, wide: int) -> None:
        self.store, self._rng, self._wide = store, rng, wide
        self.then: dict[int, dict[Bin, dict[bytes, bytes]]] = {}
        """What the bins were at each that counts."""
        self.lost: dict[int, set[Bin]] = {}
        self._number, self._frozen = 0, dict[Bin, list[bytes]]()

    def take(self) -> None:
        self._number += 1
        self.then[self._number] = {bin: scanned(self.store, bin) for bin in BINS}
        self._frozen = {bin: [*self.then[self._number][bin]] for bin in BINS}
        self.lost[self._number] = set()
        self.store.freeze(BINS)
        self.store.record_checkpoint(
            at(self._number), {bin: [(self._number, b"t")] for bin in BINS}
        )

    def change(self) -> None:
        change(self.store, self._rng, self._wide)
        bin = self._rng.choice(BINS)
        self.store.collect_states(bin, self._frozen.get(bin, [])[:50])

    def lose(self) -> None:
        """A bin goes to another worker, and perhaps comes back."""
        bin = self._rng.choice(BINS)
        self.store.drop(bin)
        self._frozen.pop(bin, None)
        if self._rng.random() < 0.5:
            self.store.install(bin, [key(bin, 1)], [encode("another's")])
        for bins in self.lost.values():
            bins.add(bin)

    def settle(self) -> None:
        """The last one exists."""
        self.store.complete_checkpoint(at(self._number))
        self.then = {self._number: self.then[self._number]}

    def cancel(self) -> None:
        """The last one is given up."""
        self.store.cancel_checkpoint(at(self._number))
        del self.then[self._number]


@pytest.mark.parametrize("wide", [0, 300])
@pytest.mark.parametrize("seed", range(8))
def test_bins_are_again_what_they_were_at_any_checkpoint_that_still_counts(
    database: Database, small: Database, seed: int, wide: int
) -> None:
    rng, store = random.Random(seed), (small if wide else database).store("per_plane")
    run = Checkpointed(store, rng, wide)
    for _ in range(30):
        run.change()
    for number in range(6):
        run.take()
        for _ in range(rng.randint(0, 6)):
            run.change()
        if rng.random() < 0.3:
            run.lose()
        if number:
            rng.choice([run.settle, run.cancel, run.change])()
    run.change()
    number = rng.choice([*run.then])
    known = store.rollback_bins(at(number))
    still = {*BINS} - run.lost[number]
    assert known <= still if wide else known == still, "what takes too much is forgotten"
    assert store.rollback(at(number), known) == {bin: [(number, b"t")] for bin in known}
    for bin in BINS:
        assert scanned(store, bin) == (run.then[number][bin] if bin in known else {})


def test_columns_go_back_too(database: Database) -> None:
    store = database.store("columns", layout=ColumnLayout((0,), ("int64",)))
    keys = [key(BINS[0], n) for n in range(KEYS)]
    count(store, keys, 1)
    store.record_checkpoint(at(1), {BINS[0]: ()})
    before = scanned(store, BINS[0])
    count(store, [*keys, key(BINS[0], KEYS)], 2)
    assert scanned(store, BINS[0]) != before
    store.rollback(at(1), [BINS[0]])
    assert scanned(store, BINS[0]) == before


def test_a_forgotten_checkpoint_is_known_for_no_bin(database: Database) -> None:
    store = database.store("per_plane")
    put(store, [BINS[0]], [b"a"], [1])
    store.record_checkpoint(at(2), {BINS[0]: ()})
    assert (
        store.rollback_bins(at(1)) == store.rollback_bins(CheckpointId(ExecutionId(8), 2)) == set()
    )
    store.rollback(at(1), set())
    assert store.bins() == [], "what is not known is not kept"


def test_what_was_held_for_going_back_has_its_share_of_the_memory_and_no_more(
    small: Database,
) -> None:
    """I6."""
    store, rng = small.store("per_plane"), random.Random(0)
    store.record_checkpoint(at(1), dict[Bin, Timers].fromkeys(BINS, ()))
    for n in range(200):
        bin = BINS[n % 3]
        keys = [key(bin, rng.getrandbits(40)) for _ in range(50)]
        put(store, [bin] * 50, keys, [seal("s" * 100)] * 50)
        assert store._undo.size <= SMALL // 16
    assert len(store.rollback_bins(at(1))) < len(BINS)


def test_a_database_that_survives_an_execution_has_its_states_and_nothing_else(
    database: Database,
) -> None:
    store = database.store("per_plane")
    put(store, [BINS[0]], [b"a"], [1])
    SpillStore(database, "per_plane").put([(b"1", b"waits")])
    database.end_execution()
    assert not [*database.rocks.entries(b"\0")]
    again = database.store("per_plane")
    assert scanned(again, BINS[0]) == {b"a": encode_sealed(1)} and again.changed_bins() == []
    assert np.count_nonzero(again._table.dirty) <= 1
