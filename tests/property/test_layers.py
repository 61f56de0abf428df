"""I4: whatever is set, spilled, written, cancelled, merged, staged and moved in any order, a bin is
at its new owner what it was at the old one, byte for byte; and no layer that is still needed has a
tombstone."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from itertools import count

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule, run_state_machine_as_test

from meander.schemas.errors import MeanderError
from meander.state.encoding.cells import EncodedState
from meander.state.encoding.codec import encode, seal
from meander.state.encoding.timers import Timers
from meander.state.keys.ids import Bin, ExecutionId, LayerId, WorkerId
from meander.state.layers import layer_input
from meander.state.layers.bin_layers import BinLayers
from meander.state.layers.layer import DeltaEntries, Entries
from meander.state.layers.layer_loader import LayerLoader
from meander.state.layers.layer_writer import LayerWriter
from meander.state.layers.manifest import LayerPointer, Manifest
from meander.state.store.memtable import NO_SLOT
from meander.state.store.rocksdb import RocksDB
from meander.state.store.store import Database, StateBatch, Store
from tests.support.state.memory_topic import MemoryTopic, drive
from tests.support.state.store_access import forget, put
from tests.support.state.store_machine import StoreMachine, entries_of

SMALL = 64 << 10
"""A budget of which some dozens of the states below are too many."""
BINS = [Bin(0), Bin(65535)]
bins = st.sampled_from(BINS)
budgets = st.sampled_from([1, 7, 100])
slices = st.sampled_from([1, 5, 1000])
rarely = st.integers(0, 9).map(lambda n: n == 0)
written = st.dictionaries(
    st.integers(0, 40),
    st.one_of(st.integers(), st.text(max_size=3), st.integers(0, 2000).map(lambda n: "x" * n)),
    min_size=1,
    max_size=20,
)


class LayersAgainstDictionary(StoreMachine):
    """Two workers, to whom each bin belongs in turn."""

    @initialize(delay=st.integers(0, 2))
    def open(self, delay: int) -> None:
        self.open_database(SMALL)
        self.topic, numbers = MemoryTopic(delay), count()
        self.others = Database(f"{self.folder.name}/other", budget_bytes=SMALL)
        self.stores = [database.store("op") for database in (self.database, self.others)]
        self.traces = [
            BinLayers(
                "op", store, self.topic, lambda: LayerId(ExecutionId(1), WorkerId(0), next(numbers))
            )
            for store in self.stores
        ]
        self.owner = dict.fromkeys(BINS, 0)
        self.oracle: dict[Bin, dict[bytes, object]] = {bin: {} for bin in BINS}
        self.staged: dict[Bin, tuple[LayerPointer, ...]] = {}
        self.staged_timers: dict[Bin, Timers] = dict.fromkeys(BINS, ())
        self.writing: dict[Bin, LayerWriter] = {}
        self.now = 0

    def teardown(self) -> None:
        if hasattr(self, "others"):
            self.others.close()
        super().teardown()

    def trace(self, bin: Bin) -> BinLayers:
        return self.traces[self.owner[bin]]

    def store(self, bin: Bin) -> Store:
        return self.stores[self.owner[bin]]

    def heir(self, bin: Bin) -> Store:
        return self.stores[1 - self.owner[bin]]

    def timers(self, bin: Bin) -> list[tuple[int, bytes]]:
        return [(7, key) for key in sorted(self.oracle[bin])[:3]]

    @rule(bin=bins, entries=written)
    def set(self, bin: Bin, entries: dict[int, object]) -> None:
        states = {encode((int(bin), n)): state for n, state in entries.items()}
        put(self.store(bin), [bin] * len(states), [*states], [seal(s) for s in states.values()])
        self.oracle[bin].update(states)

    @rule(bin=bins, numbers=st.sets(st.integers(0, 40), min_size=1, max_size=20))
    def forget(self, bin: Bin, numbers: Iterable[int]) -> None:
        keys = [encode((int(bin), n)) for n in sorted(numbers)]
        forget(self.store(bin), [bin] * len(keys), keys)
        for key in keys:
            self.oracle[bin].pop(key, None)

    @rule(bin=bins)
    def forget_all(self, bin: Bin) -> None:
        if self.oracle[bin]:
            self.forget(bin, range(41))

    @rule(bin=bins, budget=budgets, steps=slices, renew=rarely)
    def write_layer(self, bin: Bin, budget: int, steps: int, renew: bool = False) -> None:
        self.now += 1
        timers = self.timers(bin)
        self.writing[bin] = self.trace(bin).write(bin, self.now, timers, rebase=renew)
        self.go_on_writing(bin, budget, steps)

    @rule(bin=bins, budget=budgets, steps=slices)
    def go_on_writing(self, bin: Bin, budget: int, steps: int) -> None:
        if bin in self.writing and any(self.writing[bin].step(budget) for _ in range(steps)):
            del self.writing[bin]

    @rule(bin=bins)
    def cancel(self, bin: Bin) -> None:
        self.trace(bin).cancel(bin)
        self.writing.pop(bin, None)

    @rule(budget=budgets, steps=slices)
    def merge(self, budget: int, steps: int) -> None:
        for trace in self.traces:
            for _ in range(steps):
                trace.compact(budget)

    @rule(bin=bins, entries=written, budget=budgets)
    def add_a_layer(self, bin: Bin, entries: dict[int, object], budget: int) -> None:
        self.set(bin, entries)
        self.write_layer(bin, budget, 0)
        drive(self.writing.pop(bin).step, budget)

    @rule(budget=budgets)
    def merge_all(self, budget: int) -> None:
        for trace in self.traces:
            while trace.compact(budget):
                pass

    @rule(bin=bins, sure=rarely)
    def rewrite(self, bin: Bin, sure: bool) -> None:
        if sure and bin not in self.staged:
            self.trace(bin).schedule_rewrite(bin)
            self.writing.pop(bin, None)

    @rule(bin=bins, budget=budgets)
    def stage(self, bin: Bin, budget: int) -> None:
        if bin in self.staged or not self.trace(bin).layers(bin):
            return
        self.trace(bin).pin(bin)
        self.staged[bin] = self.trace(bin).layers(bin)
        manifest = Manifest("op", bin, self.now, self.staged[bin])
        installation = LayerLoader(self.heir(bin), manifest, self.topic)
        drive(installation.step, budget)
        self.staged_timers[bin] = installation.timers

    @rule(bin=bins)
    def unstage(self, bin: Bin) -> None:
        if self.staged.pop(bin, ()):
            self.trace(bin).unpin(bin)
            self.heir(bin).drop(bin)

    @rule(bin=bins, budget=budgets, most=st.sampled_from([-1, 100, 1 << 20]))
    def move(self, bin: Bin, budget: int, most: int) -> None:
        remainder = self.trace(bin).pop_delta(bin, self.timers(bin), most)
        manifest = Manifest("op", bin, self.now, self.trace(bin).layers(bin))
        if remainder is None:
            self.write_layer(bin, budget, 0)
            drive(self.writing[bin].step, budget)
            manifest = self.writing[bin].manifest
        self.writing.pop(bin, None)
        staged = [layer.id for layer in self.staged.pop(bin, ())]
        old, new = self.store(bin), self.heir(bin)
        installation = LayerLoader(new, manifest, self.topic, staged, self.staged_timers[bin])
        drive(installation.step, budget)
        timers, rest = installation.timers, remainder or DeltaEntries([], [], None)
        new.install_changed(bin, rest.keys, rest.states)
        assert (timers if rest.timers is None else rest.timers) == self.timers(bin)
        assert list(new.scan(bin)) == list(old.scan(bin))
        assert (bin in new.changed_bins()) == bool(rest.keys)
        self.trace(bin).release(bin)
        old.drop(bin)
        self.owner[bin] = 1 - self.owner[bin]
        self.trace(bin).adopt(manifest)
        if rest.timers is not None:
            new.mark_changed(bin)

    @invariant()
    def each_bin_is_what_it_should_be(self) -> None:
        if hasattr(self, "database"):
            for bin in BINS:
                assert list(self.store(bin).scan(bin)) == entries_of(self.oracle[bin])

    @invariant()
    def what_is_named_is_there(self) -> None:
        if hasattr(self, "database"):
            named = {
                place.key
                for bin in BINS
                for layer in (*self.trace(bin).layers(bin), *self.staged.get(bin, ()))
                for place in layer.chunks
            }
            assert named <= self.topic.live


TestLayersAgainstDictionary = LayersAgainstDictionary.TestCase
TestLayersAgainstDictionary.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None
)

Steps = Callable[[LayersAgainstDictionary], None]


def _older_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    streams = layer_input.MergedLayersInput.__init__

    def init(self: layer_input.MergedLayersInput, *words: object) -> None:
        streams(self, *words)  # type: ignore[arg-type]
        self._streams = self._streams[::-1]

    monkeypatch.setattr(layer_input.MergedLayersInput, "__init__", init)


def _a_bin_of_merged_layers_moves(run: LayersAgainstDictionary) -> None:
    for state in range(3):
        run.add_a_layer(BINS[0], {1: state}, 100)
    run.merge_all(100)
    run.move(BINS[0], 100, 100)


def _a_delta_forgets(monkeypatch: pytest.MonkeyPatch) -> None:
    """A forgotten key is left out of a delta."""

    def read(self: layer_input.ChangedInput, most: int) -> Entries | None:
        if (keys := self._keys.read(most)) is None:
            return None
        states = self._store.collect_states(self._bin, keys)
        alive = {key: one for key, one in zip(keys, states, strict=True) if one is not None}
        return Entries([*alive], [*alive.values()])

    monkeypatch.setattr(layer_input.ChangedInput, "read", read)


def _a_merge_drops_deletions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layer_input.MergedLayersInput, "yields_forgotten", False)


def _a_handoff_forgets_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    install = Store.install

    def live_alone(self: Store, bin: int, keys: list[bytes], states: list[EncodedState]) -> None:
        alive = {key: one for key, one in zip(keys, states, strict=True) if one is not None}
        install(self, bin, [*alive], [*alive.values()])

    monkeypatch.setattr(Store, "install", live_alone)


def _the_disk_keeps_forgotten_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RocksDB, "remove", lambda *_: None)


def _a_deletion_counts_as_no_change(monkeypatch: pytest.MonkeyPatch) -> None:
    remove = StateBatch._remove_forgotten

    def silent(self: StateBatch) -> None:
        add, self._changes.add = self._changes.add, lambda *_: None  # type: ignore[method-assign]
        remove(self)
        self._changes.add = add  # type: ignore[method-assign]

    monkeypatch.setattr(StateBatch, "_remove_forgotten", silent)


def _a_forgotten_key_of_a_base_moves(run: LayersAgainstDictionary) -> None:
    run.add_a_layer(BINS[0], {1: 1, 2: 2}, 100)
    run.forget(BINS[0], {1})
    run.move(BINS[0], 100, -1)


def _a_forgotten_key_of_a_base_moves_in_a_handoff(run: LayersAgainstDictionary) -> None:
    run.add_a_layer(BINS[0], {1: 1, 2: 2}, 100)
    run.forget(BINS[0], {1})
    run.move(BINS[0], 100, 1 << 20)


def _a_forgotten_key_is_merged(run: LayersAgainstDictionary) -> None:
    run.add_a_layer(BINS[0], dict.fromkeys(range(9), "x" * 1000), 100)
    run.forget(BINS[0], {1})
    run.add_a_layer(BINS[0], {2: 2}, 100)
    run.add_a_layer(BINS[0], {2: 3}, 100)
    run.merge_all(100)
    run.move(BINS[0], 100, 100)


SHOWN: dict[Callable[[pytest.MonkeyPatch], None], Steps] = {
    _older_wins: _a_bin_of_merged_layers_moves,
    _a_delta_forgets: _a_forgotten_key_of_a_base_moves,
    _a_merge_drops_deletions: _a_forgotten_key_is_merged,
    _a_handoff_forgets_no_key: _a_forgotten_key_of_a_base_moves_in_a_handoff,
    _a_deletion_counts_as_no_change: _a_forgotten_key_of_a_base_moves,
}
"""The steps that show what random ones come by late, as it is now."""


def _changes_are_not_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Store, "restore_changes", lambda *_: None)


def _slots_stay_dirty(monkeypatch: pytest.MonkeyPatch) -> None:
    take = Store.collect_states

    def stale(self: Store, bin: int, keys: list[bytes]) -> list[EncodedState]:
        states, slots = take(self, bin, keys), self._table.find(keys)
        self._table.dirty[slots[slots != NO_SLOT]] = True
        return states

    monkeypatch.setattr(Store, "collect_states", stale)


def _spilled_changes_are_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RocksDB, "entries", lambda *_: iter(()))


def _pins_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BinLayers, "pin", lambda *_: None)
    monkeypatch.setattr(BinLayers, "unpin", lambda *_: None)


def _staged_layers_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    run = LayerLoader._run

    def afresh(self: LayerLoader) -> Generator[None, None, None]:
        self._store.drop(self._manifest.bin)
        yield from run(self)

    monkeypatch.setattr(LayerLoader, "_run", afresh)


@pytest.mark.parametrize(
    "plant",
    [
        _older_wins, _changes_are_not_given_back, _slots_stay_dirty, _spilled_changes_are_lost,
        _pins_are_ignored, _staged_layers_are_dropped, _a_delta_forgets,
        _a_merge_drops_deletions, _a_handoff_forgets_no_key, _the_disk_keeps_forgotten_keys,
        _a_deletion_counts_as_no_change,
    ],
)  # fmt: skip
def test_a_planted_error_is_caught(
    monkeypatch: pytest.MonkeyPatch, plant: Callable[[pytest.MonkeyPatch], None]
) -> None:
    plant(monkeypatch)

    def runs() -> None:
        if plant in SHOWN:
            _go(SHOWN[plant])
        run_state_machine_as_test(
            LayersAgainstDictionary,
            settings=settings(
                max_examples=3000, stateful_step_count=40, deadline=None, database=None,
                derandomize=True, phases=[Phase.generate],
            ),
        )  # fmt: skip

    with pytest.raises((AssertionError, MeanderError)):
        runs()


@pytest.mark.parametrize("steps", SHOWN.values())
def test_what_shows_an_error_goes_well_without_it(steps: Steps) -> None:
    _go(steps)


def _go(steps: Steps) -> None:
    run = LayersAgainstDictionary()
    try:
        run.open(0)
        steps(run)
        run.each_bin_is_what_it_should_be()
    finally:
        run.teardown()


def test_a_bin_whose_keys_are_all_forgotten_has_no_layers_and_leaves_no_record_on_the_topic() -> (
    None
):
    run = LayersAgainstDictionary()
    try:
        run.open(0)
        run.add_a_layer(BINS[0], {1: 1, 2: 2}, 100)
        run.forget(BINS[0], {1, 2})
        run.write_layer(BINS[0], 100, 1000, renew=True)
        assert run.trace(BINS[0]).layers(BINS[0]) == ()
        assert not run.topic.live
        assert run.store(BINS[0]).bins() == []
    finally:
        run.teardown()


def test_a_base_has_no_entry_of_a_forgotten_key_however_many_deltas_name_it() -> None:
    run = LayersAgainstDictionary()
    try:
        run.open(0)
        for _ in range(5):
            run.add_a_layer(BINS[0], {n: n for n in range(20)}, 100)
            run.forget(BINS[0], range(19))
            run.write_layer(BINS[0], 100, 1000)
        run.write_layer(BINS[0], 100, 1000, renew=True)
        assert [layer.count for layer in run.trace(BINS[0]).layers(BINS[0])] == [1]
    finally:
        run.teardown()
