"""The flows that are measured: a surge from single records, and a loop that spreads.

Each has three ways to keep its memory small: the source waits, each edge waits, or flow control
admits batches. Records that are in the part count as inside.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from benchmarks.incremental.members import NOTHING
from meander import Flow, Stream, flow_control
from meander.dataflow.simulation.in_memory import ListSink

Way = Literal["none", "source", "credit", "control"]
WAYS: dict[Way, str] = {
    "none": "nothing waits",
    "source": "the source waits: max_inflight of 64 KiB",
    "credit": "each edge waits: link_credit of 64 KiB",
    "control": "flow control",
}
SMALL, UNBOUNDED = 64 << 10, 1 << 40
KEYS = 64
CHILDREN = 2


@dataclass(slots=True)
class Inside:
    """The number of records in the part."""

    now: int = 0
    most: int = 0

    def add(self, count: int) -> None:
        """Add records that enter, or that leave."""
        self.now += count
        self.most = max(self.most, self.now)


@dataclass(frozen=True, slots=True)
class Control:
    """A way, and the batches of flow control."""

    way: Way
    batch: int = 1000
    in_flight: int = 4


def surge(control: Control, inside: Inside) -> Flow:
    """Return a flow that makes as many outputs of each number as it says, and counts them."""
    flow, numbers = _flow(control)
    if control.way == "control":
        with flow_control(
            numbers, batch=control.batch, in_flight=control.in_flight, expand=range
        ) as inner:
            counted = _count(inner, inside).leave()
    else:
        counted = _count(numbers.flat_map(range), inside)
    counted.sink(ListSink())
    return flow


def loop(control: Control, inside: Inside) -> Flow:
    """Return a flow in which a number n goes round n times, and becomes two each time."""
    flow, numbers = _flow(control)

    def spread(n: int) -> list[int]:
        inside.add(CHILDREN - 1 if n else 0)
        return [n - 1] * CHILDREN if n else [n - 1]

    def body(stream: Stream[Any]) -> tuple[Stream[Any], Stream[Any]]:
        again, left = stream.flat_map(spread).split(_goes_on, "again", "left")
        return again, left

    def entered(stream: Stream[Any]) -> Stream[Any]:
        into = stream.inspect(lambda _: inside.add(1))
        return into.iterate("spread", body).inspect(lambda _: inside.add(-1))

    if control.way == "control":
        with flow_control(numbers, batch=control.batch, in_flight=control.in_flight) as inner:
            left = entered(inner).leave()
    else:
        left = entered(numbers)
    left.sink(ListSink())
    return flow


def _flow(control: Control) -> tuple[Flow, Stream[Any]]:
    flow = Flow(
        "bench", max_inflight=SMALL if control.way == "source" else UNBOUNDED,
        link_credit=SMALL if control.way == "credit" else UNBOUNDED,
    )  # fmt: skip
    return flow, flow.source(NOTHING)


def _count(outputs: Stream[Any], inside: Inside) -> Stream[Any]:
    entered = outputs.inspect(lambda _: inside.add(1))
    counted = entered.key_by(_key).fold("count", int, _add)
    return counted.inspect(lambda _: inside.add(-1))


def _goes_on(n: int) -> str:
    return "left" if n < 0 else "again"


def _key(number: int) -> int:
    return number % KEYS


def _add(count: int, _: int) -> tuple[int, int]:
    return count + 1, count + 1


def results(name: str, numbers: Sequence[int]) -> int:
    """Return the number of results of some numbers."""
    return sum(numbers) if name == "surge" else sum(CHILDREN**n for n in numbers)
