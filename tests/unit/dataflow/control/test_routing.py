"""Who owns a bin when, and that F sends each record there and nowhere else (I2)."""

from __future__ import annotations

from collections import Counter, defaultdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meander.dataflow.control.reassignment import Moves
from meander.dataflow.control.routing import Routing, Transfer, initial_owners
from meander.dataflow.operators.exchange import Exchange
from meander.dataflow.operators.retries import OnError
from meander.schemas.errors import MeanderError
from meander.state.encoding import codec
from meander.state.keys.bins import BinSpace
from meander.state.keys.ids import Bin, WorkerId
from meander.state.times.antichain import Antichain
from tests.support.sim.operator_bench import Bench, Dead, guard, pool, records

BITS, WORKERS, LAST = 2, 3, 12
SPACE = BinSpace(BITS)
BINS = [Bin(b) for b in range(SPACE.count)]
EARLIER = st.tuples(
    st.integers(0, LAST),
    st.integers(0, WORKERS - 1),
    st.sets(st.sampled_from(BINS), min_size=1),
)


@st.composite
def commands(draw: st.DrawFn) -> list[Moves]:
    """Changes of which no two concern one bin at one time, in any order."""
    taken: set[tuple[int, Bin]] = set()
    found = []
    for n, (time, target, bins) in enumerate(draw(st.lists(EARLIER, max_size=6))):
        free = tuple(sorted(bin for bin in bins if (time, bin) not in taken))
        taken.update((time, bin) for bin in free)
        if free:
            found.append(Moves(f"m{n}", time, WorkerId(target), free))
    return draw(st.permutations(found))


def owner(given_: list[Moves], bin: Bin, time: int) -> int:
    """By definition: the target of the latest change up to the time."""
    changes = [(m.time, int(m.target)) for m in given_ if bin in m.bins and m.time <= time]
    return max(changes, default=(0, int(SPACE.first_owner(bin, WORKERS))))[1]


def routing(given_: list[Moves]) -> Routing:
    built = Routing(SPACE, initial_owners(SPACE, WORKERS))
    for moves in given_:
        built.add(moves)
    return built


@given(commands(), st.integers(0, LAST + 1))
def test_a_bin_has_one_owner_at_each_time_whatever_order_commands_come_in(
    given_: list[Moves], settled: int
) -> None:
    """I2: and forgetting what a frontier has passed changes nothing for what is to come."""
    built = routing(given_)
    for time in range(LAST + 2):
        assert built.owners(time) == [owner(given_, bin, time) for bin in BINS]
    built.compact(Antichain.of(settled))
    for time in range(settled, LAST + 2):
        bins = np.array(BINS, np.int64)
        times = np.full(len(BINS), time, np.int64)
        assert built.destinations(bins, times).tolist() == [owner(given_, b, time) for b in BINS]
        assert built.owners(time) == [owner(given_, bin, time) for bin in BINS]


@given(commands())
def test_a_transfer_is_a_change_of_hands_and_nothing_else(given_: list[Moves]) -> None:
    """I2: what one worker gives away, exactly one other takes."""
    built = routing(given_)
    for moves in given_:
        expected = [
            Transfer(bin, moves.time, WorkerId(before), moves.target, moves.command)
            for bin in moves.bins
            for before in [owner(given_, bin, moves.time - 1)]
            if before != moves.target
        ]
        assert built.transfers(moves) == expected


def test_what_the_frontier_has_not_passed_is_not_folded_in() -> None:
    moves = Moves("m", 5, WorkerId(2), (BINS[0],))
    built = routing([moves])
    built.compact(Antichain.of(5))
    assert built.owner(BINS[0], 4) == 0
    built.compact(Antichain.of(6))
    assert built.owner(BINS[0], 4) == 2, "no record of 4 can come any more"
    assert built.owner(BINS[0], 5) == 2


def test_moves_come_back_equal_from_bytes() -> None:
    moves = Moves("m", 5 << 20, WorkerId(2), (Bin(0), Bin(65535)))
    assert Moves.from_bytes(moves.to_bytes()) == moves


# -- F's data path


WINDOW = 1 << 20
"""Bytes that may be kept back before nothing more is taken."""


class ExchangeBench:
    """An exchange whose control frontier a test moves."""

    def __init__(self, policy: OnError = "dead_letter") -> None:
        self.bench, self.routing = Bench(), Routing(BinSpace(), initial_owners(BinSpace(), 2))
        self.control = Antichain.of(0)
        errors, self.dead, self.counters = guard(policy, "key_by exchange")
        self.router = Exchange(
            self.bench.context(pool(), control=lambda: self.control),
            self.bench.inputs[0],
            self.bench.output,
            self.routing,
            errors,
            WINDOW,
            0,
            lambda _: True,
            lambda batch: batch.bin_hashes,
        )

    def turn(self) -> None:
        self.router.schedule()
        self.bench.progress.flush()

    def routed(self) -> dict[object, set[int]]:
        """Where each value has gone."""
        found: dict[object, set[int]] = defaultdict(set)
        for to, _, batch in self.bench.sent:
            for value in batch.values:
                found[value].add(to)
        return found


KEYS = ["dog", "cat", "tick", "bee", "ant"]
HOME = {key: int(BinSpace().first_owner(BinSpace().bin_of(codec.encode(key)), 2)) for key in KEYS}


def test_what_an_owner_has_no_credit_for_is_kept_in_order_and_held() -> None:
    """I6, I3: and what goes to others goes on."""
    exchange, owner = ExchangeBench(), WorkerId(HOME["dog"])
    other = next(key for key in KEYS if HOME[key] != owner)
    exchange.control = Antichain()
    exchange.bench.closed.add(owner)
    exchange.bench.put(records([1, 2, 3], [5, 6, 8], ["dog", other, "dog"]))
    exchange.turn()
    exchange.bench.put(records([4, 5], [9, 10], ["dog", other]))
    exchange.turn()
    exchange.bench.pass_to(20)
    assert set(exchange.routed()) == {2, 5}
    assert (exchange.router.stash.least, exchange.bench.held) == (None, (5,))
    exchange.bench.closed.clear()
    exchange.turn()
    gone = [v for to, _, batch in exchange.bench.sent if to == owner for v in batch.values]
    assert (gone, *exchange.bench.held) == ([1, 3, 4],)


def test_nothing_more_is_taken_while_more_than_a_window_is_kept() -> None:
    """I6: so that who sends waits too."""
    exchange, owner = ExchangeBench(), WorkerId(HOME["dog"])
    exchange.control = Antichain()
    exchange.bench.closed.add(owner)
    for n in range(3):
        exchange.bench.put(records(["x" * WINDOW], [n], ["dog"]))
        exchange.turn()
    waits = [exchange.bench.inputs[0].empty]
    exchange.bench.closed.clear()
    exchange.turn()
    exchange.turn()
    assert [*waits, exchange.bench.inputs[0].empty] == [False, True]
    assert len(exchange.bench.sent) == 3


def test_records_are_stashed_until_the_control_frontier_has_passed_their_time() -> None:
    """I2: and the time that is held for them is the least of theirs."""
    exchange = ExchangeBench()
    exchange.bench.put(records([1, 2, 3], [5, 6, 8], ["dog", "cat", "dog"]))
    exchange.control = Antichain.of(5)
    exchange.turn()
    assert exchange.routed() == {}
    exchange.bench.pass_to(20)
    assert (exchange.router.stash.least, exchange.bench.held) == (5, (5,))
    exchange.control = Antichain.of(7)
    exchange.turn()
    assert exchange.routed() == {1: {HOME["dog"]}, 2: {HOME["cat"]}}
    assert (exchange.router.stash.least, exchange.bench.held) == (8, (8,))
    exchange.control = Antichain()
    exchange.turn()
    assert exchange.routed()[3] == {HOME["dog"]}
    assert (exchange.router.stash.least, exchange.bench.held) == (None, ())


def test_each_record_goes_to_the_owner_of_its_bin_at_its_time_and_nowhere_else() -> None:
    """I2: whichever side of a change it is on."""
    exchange = ExchangeBench()
    dog = BinSpace().bin_of(codec.encode("dog"))
    exchange.routing.add(Moves("m", 150, WorkerId(1 - HOME["dog"]), (dog,)))
    exchange.bench.put(records([1, 2, 3, 4], [149, 150, 151, 200], ["dog", "dog", "cat", "dog"]))
    exchange.control = Antichain.of(1000)
    exchange.turn()
    away = 1 - HOME["dog"]
    assert exchange.routed() == {1: {HOME["dog"]}, 2: {away}, 3: {HOME["cat"]}, 4: {away}}


@given(
    st.lists(st.tuples(st.integers(0, 20), st.sampled_from(KEYS), st.integers(0, 3)), min_size=1),
    st.lists(st.integers(0, 24), max_size=4),
)
def test_records_of_one_partition_keep_their_order(
    given_: list[tuple[int, str, int]], passed: list[int]
) -> None:
    """I3: per key, through any number of stashings."""
    exchange = ExchangeBench()
    given_.sort(key=lambda record: record[0])
    for first in range(0, len(given_), 4):
        some = given_[first : first + 4]
        exchange.bench.put(
            records(
                [(key, first + i) for i, (_, key, _) in enumerate(some)],
                [time for time, _, _ in some],
                [key for _, key, _ in some],
                first_offset=first,
            )
        )
    for frontier in [*sorted(passed), 99]:
        exchange.control = Antichain.of(frontier)
        exchange.turn()
    came: dict[str, list[int]] = defaultdict(list)
    for _, lower_bound, batch in exchange.bench.sent:
        assert lower_bound == batch.times.min()
        for value in batch.values:
            assert isinstance(value, tuple)
            came[value[0]].append(value[1])
    assert all(numbers == sorted(numbers) for numbers in came.values())
    assert Counter(n for numbers in came.values() for n in numbers) == Counter(range(len(given_)))


class Strange:
    """No plain value."""


def test_what_cannot_travel_is_set_aside_wherever_it_would_go() -> None:
    """I2: what a flow answers does not depend on who owns which bin."""
    exchange = ExchangeBench()
    values = [1, Strange(), "two", {3: Strange()}]
    exchange.bench.put(records(values, [1, 1, 1, 1], ["dog"] * 4))
    exchange.control = Antichain()
    exchange.turn()
    assert set(exchange.routed()) == {1, "two"}
    (first, *_), (second, *_) = exchange.dead.letters
    assert first == second == "key_by exchange"
    assert "Strange" in exchange.dead.letters[0][2] and exchange.counters["dead_letters"] == 2


def test_what_cannot_travel_ends_a_flow_that_asked_for_it() -> None:
    exchange = ExchangeBench("fail")
    exchange.bench.put(records([Strange()], [1], ["dog"]))
    exchange.control = Antichain()
    with pytest.raises(MeanderError, match=r"operator 'key_by exchange'.*Strange"):
        exchange.turn()


def test_a_batch_of_which_nothing_can_travel_holds_nothing_up() -> None:
    """I7."""
    exchange = ExchangeBench("skip")
    exchange.bench.put(records([Strange()], [1], ["dog"]))
    exchange.bench.pass_to(None)
    exchange.control = Antichain()
    exchange.turn()
    assert (exchange.bench.sent, exchange.bench.held) == ([], ())
    assert exchange.counters["skipped"] == 1 and exchange.dead == Dead()


def test_the_size_of_what_is_routed_is_known() -> None:
    """I6: what waits downstream is bounded by it."""
    exchange = ExchangeBench()
    exchange.bench.put(records(["x" * 1000, "y"], [1, 1], ["dog", "dog"]))
    exchange.control = Antichain()
    exchange.turn()
    ((_, _, batch),) = exchange.bench.sent
    assert 1001 < batch.size < 1100
