"""I6, I7, and with them I2 and I3: random flows of folds, exchanges, joins, fan-out and loops on 1
to 8 workers with next to no credit and next to no memory, skewed keys and equal times come to their
end with the reference's results, whoever joins and leaves, and at every step no more is under way
than may be."""

from __future__ import annotations

import random
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import chain, count
from typing import Any

import msgpack
import numpy as np
import pytest

from meander.dataflow.backpressure.credit import Credit
from meander.dataflow.interfaces import Frame
from meander.dataflow.operators import exchange, stateless
from meander.dataflow.operators.buffer import buffer, spill
from meander.dataflow.operators.buffer.buffer import SpillBuffer
from meander.dataflow.operators.exchange import Exchange
from meander.dataflow.operators.keyed.operator import KeyedOperator
from meander.dataflow.operators.loop import LoopEntry
from meander.dataflow.operators.ports import least_of
from meander.dataflow.progress.capability import CapabilityError
from meander.dataflow.records import packing
from meander.dataflow.records.batch import Batch
from meander.dataflow.wire import DATA, AnyFrame, DataFrame, decode
from meander.schemas.errors import MeanderError
from meander.state.keys.ids import WorkerId
from meander.state.store.store import Databases
from meander.testing import TestFlow
from tests.support.property.budget import CREDIT, SCHEDULES, seeds
from tests.support.property.case_run import CaseRun, CrampedFlow, with_stages
from tests.support.property.cases import (
    Case,
    Entry,
    random_case,
    shortest,
    with_some_comings_and_goings,
)
from tests.support.property.planted import plant, runs
from tests.support.property.shrinking import shrunk
from tests.support.sim.manual_flow import buffered_bytes, loops

FLOOR, PLANTED_RUNS, SLICE = 10, 20, 3
MESSAGE = 1000
"""Bytes of a message of several records, here."""
HEAD = 1000
"""Bytes of a frame besides what its message is counted with: its kind, and Arrow's schema."""
Way = tuple[WorkerId, WorkerId, int]
"""Sender, receiver and edge."""


def case_of(seed: int) -> Case:
    rng = random.Random(f"credit {seed}")
    span, skew = rng.choice([0, 3, 50, 2000]), rng.choice([0.0, 0.9])
    pads = rng.choice([[0], [0, 0, 100], [0, MESSAGE // 2, MESSAGE - 1, 9 * MESSAGE]])

    def partition() -> tuple[Entry, ...]:
        times = sorted(rng.randint(0, span) for _ in range(rng.randint(0, 30)))
        keys = [0 if rng.random() < skew else rng.randrange(10) for _ in times]
        return tuple(
            (ms, {"k": k, "v": rng.randint(-9, 9), "pad": "x" * rng.choice(pads)})
            for ms, k in zip(times, keys, strict=True)
        )

    case, workers = random_case(seed, ("loops",)), rng.randint(1, 8)
    commands = (replace(c, worker=WorkerId(rng.randrange(workers))) for c in case.commands)
    small = replace(
        case,
        workers=workers,
        partitions=tuple(partition() for _ in range(rng.randint(1, 4))),
        link_credit=rng.choice([1, 100, 400]),
        room=rng.choice([1, 50, 300]),
        commands=tuple(commands),
    )
    return with_some_comings_and_goings(small)


class Watched(CrampedFlow):
    """Looks at all that is under way after every step."""

    def run(self, *, fire_timers: bool = True) -> None:
        self.largest: Counter[int] = Counter()
        self._known: dict[int, tuple[Frame, int, int]] = {}
        self.alone = self.cut = 0
        self.loops_spilled = False
        while not self.sim.done:
            self.sim.act()
            self.check()
        super().run(fire_timers=fire_timers)

    def check(self) -> None:
        window = self._plan.flow.link_credit
        under_way: Counter[Way] = Counter()
        for sender, receiver, edge, size in self._messages():
            under_way[sender, receiver, edge] += size
            self.largest[edge] = max(self.largest[edge], size, MESSAGE + HEAD)
        for loop in chain.from_iterable(map(loops, self.workers)):
            assert loop.returned.size <= loop._max_waiting, "returned records have a bound (I6)"
            self.loops_spilled |= loop.returned.spilled
        for way, size in under_way.items():
            # A message is of a bound, or of one record.
            most = window - 1 + self.largest[way[2]]
            assert size <= most, f"{size} bytes are under way on {way} (I6)"

    def _messages(self) -> Iterator[tuple[WorkerId, WorkerId, int, int]]:
        """What has been sent on edges with credit, and not been taken by its operator."""
        network, edges = self.sim.network, self._plan.graph.edges
        lanes = [(s, r, frame) for (s, r, _), many in network.frames.items() for frame in many]
        lanes += [(s, r, frame) for r, many in network.inboxes.items() for s, frame in many]
        for sender, receiver, frame in lanes:
            if frame[0][:1] == DATA:
                edge, size = self._looked_at(frame)
                if edges[edge].credit:
                    yield sender, receiver, edge, size
        for worker in self.workers:
            for port in worker.parts.operators.inputs.values():
                for message in port.waiting:
                    if message.release_credit is not None:
                        assert isinstance(message.release_credit, partial)
                        edge, sender, size = message.release_credit.args
                        yield sender, worker.me, edge, size

    def _looked_at(self, frame: Frame) -> tuple[int, int]:
        """The edge of a message and its size, which are looked at once."""
        if id(frame) not in self._known:
            edge, size = msgpack.unpackb(frame[0][1:], use_list=False)[0], sum(map(len, frame))
            self._known[id(frame)] = frame, edge, size
            if self._plan.graph.edges[edge].credit:
                self._check_message(decode(frame), size)
        _, edge, size = self._known[id(frame)]
        return edge, size

    def _check_message(self, frame: AnyFrame, size: int) -> None:
        assert isinstance(frame, DataFrame) and isinstance(frame.payload, Batch)
        alone = len(frame.payload) == 1
        assert alone or size <= MESSAGE + HEAD, f"a frame of {size} bytes left at once (I6)"
        self.alone += alone and size > MESSAGE + HEAD
        self.cut += not alone and size > MESSAGE


class CreditRun(CaseRun):
    """One random flow in a small place."""

    cramped = Watched

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        self.flow.link_credit = case.link_credit

    def check_times(self, run: TestFlow) -> None:
        super().check_times(run)
        assert isinstance(run, Watched)
        self.loops_spilled = run.loops_spilled
        self.alone, self.cut = run.alone, run.cut


def _frugal(receive: Callable[[Any], bool]) -> Callable[[Any], bool]:
    def checked(operator: Any) -> bool:
        assert buffered_bytes(operator) <= operator._max_waiting, (
            "who has no room takes nothing (I6)"
        )
        return receive(operator)

    return checked


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """What lies on disk comes back in many slices, and whoever takes messages has room for them."""
    for module in (spill, buffer):
        monkeypatch.setattr(module, "SLICE_ROWS", SLICE)
    monkeypatch.setattr(exchange, "MESSAGE_BYTES", MESSAGE)
    monkeypatch.setattr(packing, "PIECE_BYTES", MESSAGE // 2)
    monkeypatch.setattr(stateless, "BYTES", MESSAGE)
    for operator in (Exchange, KeyedOperator):
        monkeypatch.setattr(operator, "_receive", _frugal(operator._receive))


@pytest.mark.soak
def test_flows_with_next_to_no_credit_and_memory_end_with_the_same_results(
    databases: Databases, record_property: Callable[[str, object], None]
) -> None:
    namespace, done = count(80_000_000), Counter[str]()

    def fails(case: Case) -> bool:
        try:
            CreditRun(case).check(databases, next(namespace))
        except Exception:
            return True
        return False

    for seed in seeds(CREDIT, FLOOR):
        case = case_of(seed)
        run = CreditRun(case)
        try:
            run.check(databases, next(namespace))
        except Exception:
            pytest.fail(f"{traceback.format_exc()}\n{with_stages(shrunk(case, shortest, fails))}")
        done["runs"] += 1
        done["spilled"] += run.spilled
        done["loops spilled"] += run.loops_spilled
        done["alone"] += run.alone
        done["cut"] += run.cut
        done["results"] += len(run.sink.results)
        done.update(run.changes)
    record_property(f"{SCHEDULES}flows with next to no credit", done["runs"])
    record_property("of these went to disk", done["spilled"])
    record_property("of these at a loop's beginning", done["loops spilled"])
    record_property("results of these", done["results"])
    record_property("messages of one large record under way in these", done["alone"])
    record_property("messages near their bound under way in these", done["cut"])
    record_property("moves of bins in these", done["bin_moved"])
    record_property("workers that joined, with next to no credit", done["joined"])
    record_property("workers that left, with next to no credit", done["left"])


# -- bugs that are caught

_owed, _passed, _schedule = Credit.pop_due, SpillBuffer.pop_passed, LoopEntry.schedule
_message = Exchange._message


def _twice(credit: Any) -> Iterator[Any]:
    for account in _owed(credit):
        yield account
        yield account


def _more(credit: Any) -> Iterator[Any]:
    """Half as much again."""
    for peer, edge, size in _owed(credit):
        yield peer, edge, size + size // 2


def _memory_first(waiting: Any, frontier: Any) -> Any:
    near = waiting._memory.pop_passed(frontier)
    return (near, True) if near else _passed(waiting, frontier)


def _all_at_once(exchange: Any, share: Any) -> Any:
    """A message is as large as what has come."""
    arrived, batches = zip(*iter(lambda: share.count and _message(exchange, share), 0), strict=True)
    return np.concatenate(arrived), Batch.concat([*batches])


def _forgetful(loop: Any) -> bool:
    """What has come back to a loop's beginning is owed no longer once it is on disk."""
    worked = _schedule(loop)
    loop._capabilities.downgrade(*least_of(*loop.returned._memory.pending_times))
    return worked


PLANTED: dict[str, tuple[type, str, Callable[..., Any], str]] = {
    "credit is never returned": (Credit, "pop_due", lambda self: iter(()), "I7"),
    "credit is returned twice": (Credit, "pop_due", _twice, "acknowledged more"),
    "more credit is returned than was used": (Credit, "pop_due", _more, "acknowledged more"),
    "no sender looks at the credit": (Credit, "has_credit", lambda self, edge, to: True, "I6"),
    "a message has no bound": (Exchange, "_message", _all_at_once, "left at once"),
    "what is on disk is overtaken": (
        SpillBuffer,
        "pop_passed",
        _memory_first,
        "assert|not the reference",
    ),
    "nothing goes to disk": (SpillBuffer, "spill_some", lambda self: 0, "I[67]"),
    "what goes round is forgotten": (
        LoopEntry,
        "schedule",
        _forgetful,
        "permit",
    ),
}
"""And what is said of it."""


@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_is_caught(
    bug: str, databases: Databases, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, method, planted, said = PLANTED[bug]
    plant(monkeypatch, owner, method, planted)
    namespace = count(90_000_000 + 1_000 * list(PLANTED).index(bug))

    def tried() -> None:
        # As it is now, the second shows each of them early.
        for seed in runs(1, PLANTED_RUNS):
            CreditRun(case_of(seed)).check(databases, next(namespace))

    with pytest.raises((AssertionError, MeanderError, CapabilityError), match=said):
        tried()
