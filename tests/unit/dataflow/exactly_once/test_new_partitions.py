"""I5 for partitions that a start from a checkpoint finds: a bounded run reads them by itself."""

from __future__ import annotations

import random

import pytest

from meander import Flow
from meander.dataflow.interfaces import Partition, Rest, Rests
from meander.dataflow.simulation.in_memory import ListReader, ListSink, ListSource
from meander.dataflow.simulation.simulator import TakeCheckpoint
from meander.testing import TestFlow


class BoundedSource(ListSource):
    """A source that reads partitions without a position too, as a topic does in a bounded run."""

    def resumed(self, rests: Rests, rng: random.Random) -> ListReader:
        reader = super().resumed(rests, rng)
        for number in map(Partition, range(len(self.partitions))):
            if number not in rests:
                reader.adopt(number, Rest(0, None))
        return reader


@pytest.mark.parametrize("seed", range(6))
def test_old_records_of_a_new_partition_have_their_results_once(seed: int) -> None:
    """Though results of their times count as committed, and though a run ends in their midst."""
    sink, source = ListSink(), BoundedSource([[(n, "a") for n in range(1, 200)]])
    flow = Flow("counts", bins=2, delivery="exactly_once")
    words = flow.source(source).key_by(lambda word: word)
    words.fold("n", int, lambda n, word: (n + 1, [word, n + 1])).sink(sink)
    with TestFlow(flow, 1, seed, commands=[TakeCheckpoint()]) as run:
        run.run()
        world = run.world
    for word in "bc":
        source.add_partition([(n, word) for n in range(1, 101)])
        with TestFlow(flow, 1, seed, world=world) as run:
            while sum(value[0] == word for value in sink.values if isinstance(value, list)) < 30:
                run.act()
        with TestFlow(flow, 1, seed + 1, world=world) as run:
            run.run()
        found = [value[1] for value in sink.values if isinstance(value, list) and value[0] == word]
        assert found == [*range(1, 101)]
    assert len(sink.values) == 399
