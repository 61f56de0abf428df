"""A random case whose results only outboxes can deliver."""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict
from typing import Any
from unittest import mock

from meander import KeyedStream, Stream, nondeterministic
from meander.dataflow.checkpoint import checkpoint_coordinator
from meander.dataflow.simulation import transactions
from meander.state.encoding import codec
from meander.testing import Result, TestFlow
from tests.support.property.cases import (
    Case,
    random_case,
    with_aborts,
    with_some_comings_and_goings,
    with_some_full_bins,
)
from tests.support.property.exactly_once_run import ExactlyOnceRun

KINDS = ("arrival", "drawn", "again", "round")


class OutboxRun(ExactlyOnceRun):
    """A recovery run whose results no replay gives again."""

    interval = 0.03
    # Without checkpoints nothing leaves.
    timeouts = (0.1, 600.0)

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        self._chance = random.Random(f"drawn {case.seed}")
        self.drawn = 0

    def define(self, keyed: KeyedStream[Any], other: KeyedStream[Any] | None) -> KeyedStream[Any]:
        """Define results that tell their number, what was drawn for them and for the last."""
        match self.case.kind:
            case "arrival":
                return keyed.fold("a", _nothing, self.link, order="processing")
            case "drawn":
                return keyed.fold("a", _nothing, nondeterministic(self.link))
            case "asked":
                return keyed.map_async("ask", self.asked, concurrency=2).fold(
                    "a", _nothing, self.link
                )
            case "round":
                left = self.source.iterate("loop", self.go_round)
                return left.key_by(_third).fold("a", _nothing, self.link, order="processing")
            case _:
                passed = keyed.map(nondeterministic(self.redrawn))
                return passed.key_by(_third).fold("a", _nothing, self.link, order="processing")

    def go_round(self, inside: Stream[Any]) -> tuple[Stream[Any], Stream[Any]]:
        """Let records enter without keys, and go round with keys as often as is drawn for each."""
        drawn = inside.map(nondeterministic(self.redrawn)).key_by(_third)
        again, left = drawn.split(lambda v: "leave" if v["v"] % 3 else "again", "again", "leave")
        return again, left

    def link(self, state: Any, value: Any) -> Any:
        """Return the next result of a chain."""
        number, last = state
        drawn = self._draw()
        return (number + 1, drawn), (number + 1, last, drawn)

    async def asked(self, value: Any) -> Any:
        """Return another value for the same key, some time later."""
        await asyncio.sleep(0.001 * self._chance.randrange(4))
        return self.redrawn(value)

    def redrawn(self, value: Any) -> Any:
        """Return another value for the same key."""
        return value | {"v": self._draw()}

    def _draw(self) -> int:
        self.drawn += 1
        return self._chance.getrandbits(40)

    def recover(self) -> None:
        """Run with outboxes of a random size."""
        room = random.Random(f"room {self.case.seed}").choice([1, 3, transactions.MAX_DEFERRED])
        with (
            mock.patch.object(transactions, "MAX_DEFERRED", room),
            mock.patch.object(checkpoint_coordinator, "FAILED_PAUSE", 0.01),
        ):
            super().recover()

    def check_results(self, run: TestFlow) -> None:
        """Check that the results of each key form a chain without a gap, up to its state."""
        chains: dict[bytes, list[Result]] = defaultdict(list)
        for result in self.sink.results:
            assert result.key is not None
            chains[result.key].append(result)
        for results in chains.values():
            self.check_chain(results)
        ends = {key: max(map(_value, results))[::2] for key, results in chains.items()}
        assert run.state() == {"a": {key: codec.encode(end) for key, end in ends.items()}}
        read = Counter((one.partition, one.offset) for one in self.raw.results)
        found = Counter((one.partition, one.offset) for one in self.sink.results)
        assert found == read, "each record has one result (I5)"

    def check_chain(self, results: list[Result]) -> None:
        """Check the results of one key, as they were committed (I9)."""
        last = None
        for n, (number, before, drawn) in enumerate(map(_value, results), 1):
            assert number == n, "nothing is committed twice, left out or out of order (I5, I9)"
            assert before == last, "what is committed follows from what was committed before (I5)"
            last = drawn


def case_of(seed: int, kinds: tuple[str, ...] = KINDS) -> Case:
    case = with_some_full_bins(random_case(seed, kinds))
    return with_some_comings_and_goings(with_aborts(case))


def _nothing() -> tuple[int, None]:
    return 0, None


def _third(value: Any) -> object:
    return value["k"] % 3


def _value(result: Result) -> Any:
    return result.value
