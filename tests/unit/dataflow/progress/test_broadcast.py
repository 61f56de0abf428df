"""I6: who takes no updates has a bounded number of them waiting, and misses none."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meander.dataflow.control.timestamp_overrides import TimestampOverride
from meander.dataflow.graph.graph import Location
from meander.dataflow.interfaces import Frame, Partition
from meander.dataflow.progress import broadcast
from meander.dataflow.progress.broadcast import ProgressBroadcast
from meander.dataflow.wire import Change, ProgressAckFrame, ProgressFrame, decode
from meander.schemas.errors import MeanderError
from meander.state.keys.ids import WorkerId

PEER, OTHER = WorkerId(1), WorkerId(2)
changes = st.lists(
    st.tuples(st.integers(0, 3).map(Location), st.integers(0, 5), st.sampled_from((-1, 1))),
    max_size=4,
)


class Wire:
    """Links that keep what is sent."""

    def __init__(self) -> None:
        self.frames: dict[WorkerId, list[Frame]] = {}

    def send(self, peer: WorkerId, frame: Frame) -> None:
        self.frames.setdefault(peer, []).append(frame)

    def flush(self) -> None:
        """Nothing is held back."""

    def receive(self) -> list[tuple[WorkerId, Frame]]:
        return []

    def take(self, peer: WorkerId) -> list[ProgressFrame]:
        """What has come to a peer since the last call."""
        told = [decode(frame) for frame in self.frames.pop(peer, [])]
        return [frame for frame in told if isinstance(frame, ProgressFrame)]


def total(many: list[list[Change]]) -> dict[tuple[Location, object], int]:
    summed: Counter[tuple[Location, object]] = Counter()
    for changes in many:
        for location, time, delta in changes:
            summed[location, time] += delta
    return {at: count for at, count in summed.items() if count}


@given(st.lists(st.tuples(changes, st.booleans()), max_size=60), st.integers(1, 4))
def test_a_peer_hears_of_all_changes_and_never_has_more_than_a_window_to_take(
    steps: list[tuple[list[Change], bool]], window: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(broadcast, "WINDOW", window)
        wire, made, come, heard = Wire(), list[list[Change]](), list[list[Change]](), 0
        sender = ProgressBroadcast(wire)
        sender.add_peer(PEER)
        for one, listens in [*steps, *[([], True)] * 3]:
            made.append(one)
            sender.send_update(one)
            assert len(wire.frames.get(PEER, ())) <= window + 1
            if listens:
                for frame in wire.take(PEER):
                    come.append(frame.changes)
                    heard += frame.updates
                sender.note_acknowledged(PEER, heard)
        for frame in wire.take(PEER):
            come.append(frame.changes)
            heard += frame.updates
        assert (total(come), heard) == (total(made), len(made))
        assert not sender.behind


def test_one_that_lags_keeps_no_other_waiting() -> None:
    wire = Wire()
    sender = ProgressBroadcast(wire)
    for peer in (PEER, OTHER):
        sender.add_peer(peer)
    for n in range(3 * broadcast.WINDOW):
        sender.send_update([(Location(0), n, 1)])
        if wire.frames.get(OTHER):
            sender.note_acknowledged(OTHER, n + 1)
            wire.take(OTHER)
    assert len(wire.frames[PEER]) == broadcast.WINDOW
    assert sender.behind


def test_one_that_lags_hears_of_all_rulings_and_of_the_last_about_a_place() -> None:
    wire = Wire()
    sender = ProgressBroadcast(wire)
    sender.add_peer(PEER)
    for n in range(broadcast.WINDOW + 6):
        sender.send_update([], [TimestampOverride(0, Partition(0), n // 2, n)])
    told = [ruling for frame in wire.take(PEER) for ruling in frame.overrides]
    assert [ruling.time for ruling in told] == [*range(broadcast.WINDOW)]
    sender.note_acknowledged(PEER, broadcast.WINDOW)
    (frame,) = wire.take(PEER)
    assert [ruling.time for ruling in frame.overrides] == [broadcast.WINDOW + n for n in (1, 3, 5)]


def test_of_bases_for_one_that_lags_the_last_is_sent_behind_the_updates() -> None:
    wire = Wire()
    sender = ProgressBroadcast(wire)
    sender.add_peer(PEER)
    for n in range(broadcast.WINDOW + 5):
        sender.send_update([(Location(0), n, 1)])
    sender.send_base([b"M first"])
    sender.send_base([b"M second"])
    sender.note_acknowledged(PEER, broadcast.WINDOW)
    *_, kept, base = wire.frames[PEER]
    assert decode(kept) == ProgressFrame(
        [(Location(0), broadcast.WINDOW + n, 1) for n in range(5)], 5
    )
    assert base == [b"M second"]


def test_who_takes_updates_says_so_every_quarter_of_a_window() -> None:
    wire = Wire()
    receiver = ProgressBroadcast(wire)
    receiver.add_peer(PEER)
    for n in range(1, broadcast.WINDOW + 1):
        receiver.note_received(PEER, n)
    quarter = broadcast.WINDOW // 4
    told = [decode(frame) for frame in wire.frames[PEER]]
    assert told == [ProgressAckFrame(quarter * n) for n in range(1, 5)]


@pytest.mark.parametrize("said", [2, 0])
def test_a_peer_with_an_impossible_acknowledgement_is_named(said: int) -> None:
    sender = ProgressBroadcast(Wire())
    sender.add_peer(PEER)
    sender.send_update([])
    sender.note_acknowledged(PEER, 1)
    with pytest.raises(MeanderError, match="worker 1: it acknowledged updates"):
        sender.note_acknowledged(PEER, said)
