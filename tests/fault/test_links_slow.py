"""A network that delays or loses changes nothing but the time that all takes (I3, I7)."""

from __future__ import annotations

import random
from contextlib import closing

import pytest

from meander.dataflow.simulation.in_memory import ListSink, ListSource
from tests.support.links.linked_flow import LinkedFlow, counting_flow
from tests.support.links.members import A, B, until
from tests.support.links.pair import Pair
from tests.support.links.relay import Loss

FRAMES = 200


@pytest.mark.parametrize("seed", range(5))
def test_frames_and_messages_arrive_whole_and_in_order_though_packets_are_lost(seed: int) -> None:
    rng, loss = random.Random(seed), Loss(seed)
    frames = [[rng.randbytes(int(40_000 ** rng.random()))] for _ in range(FRAMES)]
    messages = [b"%d" % n for n in range(FRAMES)]
    came: list[object] = []
    told: list[object] = []
    with closing(Pair(loss)) as pair:
        for frame, message in zip(frames, messages, strict=True):
            pair.a.send(B, frame)
            pair.a.flush()
            pair.a.send_message(B, message)

        def all_came() -> bool:
            came.extend(pair.b.receive())
            told.extend(pair.b.receive_messages())
            return len(came) >= FRAMES and len(told) >= FRAMES

        until(pair.b, all_came)
    assert came == [(A, frame) for frame in frames]
    assert told == [(A, message) for message in messages]
    assert loss.stalls


@pytest.mark.parametrize(("delay", "seed"), [(0.015, None), (0.0, 1), (0.0, 2)])
def test_a_flow_comes_to_its_end_with_the_same_results(delay: float, seed: int | None) -> None:
    """15 ms each way, to and from everybody, or losses: progress passes."""
    sink, loss = ListSink(), None if seed is None else Loss(seed)
    partitions = [[(ms, ms % 7) for ms in range(p, 300, 3)] for p in range(3)]
    with LinkedFlow(counting_flow(ListSource(partitions), sink), delay=delay, loss=loss) as run:
        run.until(lambda: run.done)
    seen = [[value for value in sink.values if value[0] == key] for key in range(7)]  # type: ignore[index]
    assert seen == [[(key, n + 1) for n in range(len(seen[key]))] for key in range(7)]
    assert sum(map(len, seen)) == 300
