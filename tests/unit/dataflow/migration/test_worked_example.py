"""The worked example of live reconfiguration, section 2.3, step by step (I2, I3, I4).

Two words are counted on two workers, and all data is at worker 0 at first. ("dog", 10) and
("cat", 5) come at 100, ("dog", 13) and ("cat", 23) at 200. "dog" moves to worker 1 at 150, "cat" at
200. A third word, on a partition of its own, is the hand that moves the furthest time read (and
with it T, the least time not forsworn).
"""

from __future__ import annotations

import pytest

from meander import Flow
from meander.dataflow.control.command import MoveBins
from meander.dataflow.simulation.in_memory import ListSink
from meander.state.encoding import codec
from meander.state.keys.bins import BinSpace
from meander.state.keys.ids import Bin, WorkerId
from meander.state.times.time import from_millis, to_millis
from tests.support.sim.manual_flow import ManualSource, buffered_batches, keyed, migrator, until
from tests.support.sim.start import Start

SPACE = BinSpace(2)
WORDS, HAND = 0, 1
"""The partitions."""
SECOND = WorkerId(1)
Entry = tuple[str, int]


def bin_of(word: str) -> Bin:
    return SPACE.bin_of(codec.encode(word))


def just_past(ms: int) -> int:
    return from_millis(ms) + 1


class Example:
    """The flow of the example, and what is to be seen of F and S on the way."""

    def __init__(self, start: Start) -> None:
        self.source, self.sink = ManualSource(partitions=2), ListSink()
        flow = Flow("words", bins=SPACE.bits, control_lead=0.0)
        words = flow.source(self.source).key_by(_word)
        words.fold("total", lambda: 0, _count).sink(self.sink)
        self.run = start(flow, workers=2)
        for feed in self.source.feeds:
            feed.busy = True
        every = tuple(map(Bin, range(SPACE.count)))
        self.run.sim.submit(
            MoveBins("all at 0", every, WorkerId(0), 0, "all-at-once", precopy=False)
        )
        self.run.run_until_idle()

    def hand(self, ms: int) -> None:
        """Move the furthest time that is read."""
        self.source.give(HAND, (ms, ("tick", 0)))

    def words_follow(self) -> None:
        """The words' partition has no data for now: it moves on to where something waits for it."""
        self.source.feeds[WORDS].busy = False
        self.run.wait(0.005)
        self.source.feeds[WORDS].busy = True

    def ask(self, word: str, ms: int) -> None:
        self.run.sim.submit(MoveBins(word, (bin_of(word),), SECOND, from_millis(ms), precopy=False))

    def stashed(self) -> list[object]:
        """What F stashes, on either worker."""
        return [
            value
            for worker in self.run.workers
            for router in worker.parts.operators.exchanges
            for rows in buffered_batches(router.stash)
            for value in rows.batch.values
        ]

    def wait_at_s(self, worker: int) -> list[object]:
        """The words that S on a worker has got and not applied."""
        batches = buffered_batches(keyed(self.run.workers[worker], "total")._waiting)
        values = [value for rows in batches for value in rows.batch.values]
        return [value for value in values if value[0] != "tick"]  # type: ignore[index]

    def undecided(self) -> list[str]:
        """The requests pending at F of worker 0: others may still come before them."""
        return [moves.command for moves in migrator(self.run.workers[0]).undecided]

    def leaving(self) -> list[tuple[Bin, bool]]:
        """The bins that are certain to leave worker 0, and whether they have begun to."""
        outlet = self.run.workers[0].parts.operators.outgoing[0]
        return [(d.transfer.bin, d.writer is not None) for d in outlet.leaving]

    def s_output(self) -> tuple[object, ...]:
        """What may still leave S anywhere, as F of worker 0 sees it."""
        return keyed(self.run.workers[0], "total").frontier.times

    def state(self, worker: int) -> dict[object, object]:
        """The words' state on a worker."""
        states = self.run.workers[worker].state()["total"]
        decoded = {codec.decode(key): codec.decode(state) for key, state in states.items()}
        return {word: total for word, total in decoded.items() if word != "tick"}

    def results(self) -> list[tuple[object, int, int]]:
        """(word, total), milliseconds and worker of every answer to a word."""
        return [
            (result.value, to_millis(result.time), result.worker)
            for result in self.sink.results
            if result.value[0] != "tick"  # type: ignore[index]
        ]


def _word(entry: Entry) -> str:
    return entry[0]


def _count(total: int, entry: Entry) -> tuple[int, Entry]:
    return total + entry[1], (entry[0], total + entry[1])


@pytest.fixture
def example(start: Start) -> Example:
    return Example(start)


def test_the_example_of_the_paper_step_by_step(example: Example) -> None:
    run, dog, cat = example.run, bin_of("dog"), bin_of("cat")
    assert len({dog, cat, bin_of("tick")}) == 3

    # F receives ("dog", 10) and ("cat", 5), and enqueues them until its reconfiguration input
    # passes 100.
    example.source.give(WORDS, (100, ("dog", 10)), (100, ("cat", 5)))
    run.run_until_idle(coordinator=False)
    assert example.stashed() == [("dog", 10), ("cat", 5)]

    # There are no reconfigurations at or before 100. This is noticed, and they are distributed.
    run.run_until_idle()
    assert run.forsworn == just_past(100)
    assert example.stashed() == []
    assert example.wait_at_s(0) == [("dog", 10), ("cat", 5)]
    assert example.results() == []

    # S observes that it will get nothing more of 100, and applies the updates.
    example.hand(140)
    run.run_until_idle()
    example.words_follow()
    assert example.state(0) == {"dog": 10, "cat": 5}
    assert example.results() == [(("dog", 10), 100, 0), (("cat", 5), 100, 0)]

    # F receives ("dog", 1) at 150. A request for an earlier time might still come: it is pending.
    example.ask("dog", 150)
    run.run_until_idle()
    assert run.forsworn == just_past(140)
    assert (example.undecided(), example.leaving()) == (["dog"], [])

    # The reconfiguration input passes 150, but S may still have to apply what comes before 150.
    example.hand(160)
    run.run_until_idle()
    assert run.forsworn == just_past(160)
    assert example.s_output() == (from_millis(140),)
    assert (example.undecided(), example.leaving()) == ([], [(dog, False)])

    # The input of F advances past 150. S's output reaches 150 and does not pass it, as F retains
    # the ability to send at 150: F can migrate the state of "dog".
    example.source.feeds[WORDS].busy = False
    until(lambda: example.leaving() == [(dog, True)], lambda: _tick(example))
    example.source.feeds[WORDS].busy = True
    assert example.s_output() == (from_millis(150),)
    assert example.state(0) == {"dog": 10, "cat": 5}
    assert example.state(1) == {}

    # Worker 1 installs it; only then does the output of S pass 150, and the copy is given up.
    until(lambda: example.s_output() != (from_millis(150),), run.turn)
    assert example.state(1) == {"dog": 10}
    run.run_until_idle()
    assert (example.state(0), example.leaving()) == ({"cat": 5}, [])
    assert run.said("dog") == ["accepted", "bin_moved", "completed"]

    # F receives ("cat", 1) at 200, but not yet the data of 200.
    example.ask("cat", 200)
    run.run_until_idle()
    assert example.undecided() == ["cat"]

    # The reconfiguration input passes 200, but the output of S has not reached 200.
    example.hand(200)
    run.run_until_idle()
    assert run.forsworn == just_past(200)
    assert (example.undecided(), example.leaving()) == ([], [(cat, False)])

    # The input of F reaches 200 and does not pass it: data of 200 may still come, and none has. The
    # migration begins all the same, as it needs only what is strictly before.
    example.source.feeds[WORDS].busy = False
    until(lambda: example.leaving() == [(cat, True)], lambda: _tick(example))
    example.source.feeds[WORDS].busy = True
    assert example.s_output() == (from_millis(200),)
    assert example.state(0) == {"cat": 5}

    # The data of 200 can be routed at once, and both keys arrive at worker 1, where they wait.
    example.source.give(WORDS, (200, ("dog", 13)), (200, ("cat", 23)))
    until(lambda: len(example.wait_at_s(1)) == 2, run.turn)
    assert example.wait_at_s(1) == [("dog", 13), ("cat", 23)]
    run.run_until_idle()
    assert example.state(1) == {"dog": 10, "cat": 5}
    assert example.state(0) == {"cat": 5}, "a copy stays until the output of S passes 200"
    assert len(example.results()) == 2

    # Time passes 200, and they are applied to the accumulation of strictly prior values.
    run.finish(example.source)
    assert example.results()[2:] == [(("dog", 23), 200, 1), (("cat", 28), 200, 1)]
    assert (example.state(0), example.state(1)) == ({}, {"dog": 23, "cat": 28})
    assert run.said("cat") == ["accepted", "bin_moved", "completed"]
    assert run.counters["late_adjusted"] == 0


def test_no_request_is_carried_out_before_those_of_earlier_times_are_known(
    example: Example,
) -> None:
    """I2: a request for a later time that came first does not take the state away."""
    run = example.run
    example.source.give(WORDS, (100, ("dog", 10)))
    example.hand(120)
    run.run_until_idle()
    example.words_follow()
    example.ask("dog", 200)
    run.run_until_idle()
    assert example.undecided() == ["dog"]
    run.sim.submit(MoveBins("back", (bin_of("dog"),), WorkerId(0), from_millis(300)))
    run.sim.submit(MoveBins("first", (bin_of("dog"),), SECOND, from_millis(150)))
    run.run_until_idle()
    assert sorted(example.undecided()) == ["back", "dog", "first"]
    example.source.give(WORDS, *((ms, ("dog", 1)) for ms in (149, 150, 200, 299, 300)))
    run.finish(example.source)
    assert [(ms, worker) for _, ms, worker in example.results()] == [
        (100, 0), (149, 0), (150, 1), (200, 1), (299, 1), (300, 0),
    ]  # fmt: skip
    assert example.state(0) == {"dog": 15}
    # "dog" was at worker 1 already at 200: that request is completed without a move.
    assert run.said("first") == run.said("back") == ["accepted", "bin_moved", "completed"]
    assert run.said("dog") == ["accepted", "completed"]


def _tick(example: Example) -> None:
    example.run.sim.clock.advance(0.001)
    example.run.turn()
