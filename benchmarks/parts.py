"""What is measured of migrations: its parts, and the cases of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, get_args

from benchmarks import moving, raw, sweeps
from benchmarks.moving import ALL_AT_ONCE, STRATEGIES, Strategy
from benchmarks.outcome import Found
from benchmarks.running import Running
from benchmarks.states import States
from benchmarks.wave import Wave

Name = Literal[
    "2a", "2b", "2c", "memory", "growth", "cost", "lead", "rescale", "order", "pace", "interval"
]
NAMES: tuple[Name, ...] = get_args(Name)
RESCALED_KEYS, RESCALED_RATE = 1_000_000, 3_000
"""What users of other engines were asked at."""
INTERVALS = (2.0, 10.0, 60.0)
"""Seconds between snapshots."""
ORDERS = [
    Strategy("fluid", precopy=True, order=order) for order in ("as-listed", "hottest", "coldest")
]
ORDER_BITS = 5
"""Bins move one after the other, and each waits for what an overloaded worker has before it."""
SHARES, LATENCIES = (0.1, 0.3, 0.9), (0.03, 0.1, 0.3)
"""Of the workers' time, for what is moved ahead; and seconds that records may take meanwhile."""
LEADS = (0.0, 0.05, 0.25, 1.0)
"""Seconds."""
BITS = 8
FIXED = f"2^{BITS} bins"
UNMOVABLE = f"{FIXED}, F off"
DRAINED = "no move: one worker drains a backlog"
JOINED = "1 to 2 workers"


@dataclass(frozen=True, slots=True)
class Wanted:
    """How it is to be measured; without `keys` each part has its own."""

    rate: int
    """Records per second where two workers take what they can."""
    served: int
    """Records per second that each of eight workers serves."""
    keys: int | None = None
    strategies: Sequence[Strategy] = tuple(STRATEGIES.values())

    @property
    def few(self) -> int:
        """Keys, where many would only take time."""
        return self.keys or RESCALED_KEYS

    @property
    def wave(self) -> Wave:
        """Of those parts that have two workers."""
        return Wave.fixed(self.rate)

    def case(self, name: Name) -> moving.Case:
        """Of a part that compares strategies."""
        keys, old = self.keys or 10_000_000, 4 * self.served
        match name:
            case "2b":
                keys = self.keys or 40_000_000
                return moving.Case(keys, Wave.fixed(0.6 * old), 4, 8, BITS, self.served)
            case "2c":
                wave = Wave(0.4 * old, 1.25 * old, period=2.0)
                return moving.Case(keys, wave, 4, 8, BITS, self.served)
            case "order":
                served = 2 * self.served
                wave = Wave.fixed(1.25 * served)
                return moving.Case(self.few, wave, bits=ORDER_BITS, service=served, skewed=True)
        return moving.Case(keys, self.wave)

    def sizes(self) -> list[tuple[int, int]]:
        """Keys, and the binary logarithm of bins: at fixed bins, then at fixed keys per bin."""
        keys = self.few
        fixed = [(times * keys, BITS) for times in (1, 4, 16)]
        return [*fixed, (keys, BITS - 2), (16 * keys, BITS + 2)]


@dataclass(frozen=True, slots=True)
class Step:
    """One run of one case."""

    case: str
    run: Callable[[States], Found]
    """Raises Unavailable, Lost."""


def what(wanted: Wanted, name: Name) -> str:
    """One sentence on what a part measures."""
    match name:
        case "2a" | "2b" | "2c" | "order":
            return str(wanted.case(name))
        case "memory":
            return f"{wanted.case(name)}, PSS of both workers every 100 ms"
        case "pace":
            return f"{wanted.strategies[0]}, {replace(wanted.case('2c'), keys=wanted.few)}"
        case "interval":
            return (
                f"{ALL_AT_ONCE}, {wanted.few:,} keys, 1 to 2 workers, {wanted.wave.told} records/s"
            )
        case "growth":
            return f"{wanted.strategies[0]}, 1 to 2 workers, {wanted.wave.told} records/s"
        case "cost":
            return f"{wanted.few:,} keys, 2 workers, {wanted.wave.told} records/s"
        case "lead":
            return f"2 workers, {wanted.wave.told} records/s, commands that move one bin at once"
        case "rescale":
            return f"{wanted.few:,} keys, {RESCALED_RATE:,} records/s"


def steps(wanted: Wanted, name: Name) -> Iterator[Step]:
    """One run of each case of a part."""
    match name:
        case "growth":
            yield from _growth(wanted)
        case "cost":
            yield from _cost(wanted)
        case "lead":
            for seconds in LEADS:
                run = partial(sweeps.lead, wave=wanted.wave, seconds=seconds)
                yield Step(f"{seconds:g} s", run)
        case "rescale":
            keys, wave = wanted.few, Wave.fixed(RESCALED_RATE)
            yield Step(JOINED, partial(sweeps.rescale, keys=keys, wave=wave))
        case "pace":
            paces = [(f"share {share:g}", ("SHARE", f"{share:g}")) for share in SHARES]
            paces += [(f"latency {s:g} s", ("LATENCY", f"{s:g}")) for s in LATENCIES]
            for label, pace in paces:
                case = replace(wanted.case("2c"), keys=wanted.few, pace=(pace,))
                run = partial(moving.once, case=case, strategy=wanted.strategies[0])
                yield Step(label, run)
        case "interval":
            for seconds in INTERVALS:
                case = moving.Case(wanted.few, wanted.wave, interval=seconds)
                yield Step(f"{seconds:g} s", partial(moving.once, case=case, strategy=ALL_AT_ONCE))
        case _:
            yield from _strategies(wanted, name)


def _strategies(wanted: Wanted, name: Name) -> Iterator[Step]:
    for one in ORDERS if name == "order" else wanted.strategies:
        besides = raw.plainly if (name, one) == ("2a", ALL_AT_ONCE) else _nothing
        run = partial(
            moving.once, case=wanted.case(name), strategy=one,
            watched=name == "memory", besides=besides,
        )  # fmt: skip
        yield Step(str(one), run)
    if name == "2a":
        yield Step(DRAINED, partial(sweeps.capacity, case=wanted.case(name)))


def _growth(wanted: Wanted) -> Iterator[Step]:
    for keys, bits in wanted.sizes():
        case = moving.Case(keys, wanted.wave, bits=bits)
        run = partial(moving.once, case=case, strategy=wanted.strategies[0])
        yield Step(sized(keys, bits), run)


def _cost(wanted: Wanted) -> Iterator[Step]:
    benches = {f"2^{bits} bins": {"BINS": str(bits)} for bits in (4, BITS, 12)}
    for label, bench in (benches | {UNMOVABLE: {"F": "off"}}).items():
        run = partial(sweeps.cost, keys=wanted.few, wave=wanted.wave, bench=bench)
        yield Step(label, run)


def sized(keys: int, bits: int) -> str:
    """The case of one size of the state."""
    return f"{keys:,} keys, 2^{bits} bins"


def _nothing(_: Running) -> Mapping[str, float]:
    return {}
