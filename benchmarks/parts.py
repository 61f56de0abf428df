"""What is measured of migrations: its parts, and the cases of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from benchmarks import moving, raw, sweeps
from benchmarks.moving import ALL_AT_ONCE, STRATEGIES, Case, Strategy
from benchmarks.outcome import Found
from benchmarks.states import States
from meander.app.measurement.open_loop import Wave

TITLES = {
    "2a": "From one worker to two", "2b": "From four workers to eight",
    "2c": "From four workers to eight, under a square wave", "memory": "Memory",
    "growth": "More state", "cost": "The cost of being migratable", "lead": "`control_lead`",
    "order": "The order of bins, where keys are skewed",
    "pace": "A share, or a latency, under a square wave", "interval": "`snapshot_interval`",
    "rescale": "A second worker joins",
}  # fmt: skip
"""The parts."""
FEW, RESCALED_RATE = 1_000_000, 3_000
"""What users of other engines were asked at."""
ORDERS = [
    Strategy("fluid", precopy=True, order=order) for order in ("as-listed", "hottest", "coldest")
]
ORDER_BITS = 5
"""Bins move one after the other, and each waits for what an overloaded worker has before it."""
PACES = [("SHARE", 0.1), ("SHARE", 0.3), ("SHARE", 0.9), ("LATENCY", 0.03), ("LATENCY", 0.1),
         ("LATENCY", 0.3)]  # fmt: skip
"""Of the workers' time, for what is moved ahead; and seconds that records may take meanwhile."""
LEADS, INTERVALS = (0.0, 0.05, 0.25, 1.0), (2.0, 10.0, 60.0)
"""Seconds; also between snapshots."""
BITS = 8
FIXED = f"2^{BITS} bins"
UNMOVABLE = f"{FIXED}, F off"
DRAINED = "no move: one worker drains a backlog"
JOINED = "1 to 2 workers"
Run = Callable[[States], Found]
"""One run of a case. Raises Unavailable, Lost."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """How it is to be measured; without `keys` each part has its own."""

    rate: int
    """Records per second where two workers take what they can."""
    served: int
    """Records per second that each of eight workers serves."""
    keys: int | None = None
    strategies: Sequence[Strategy] = tuple(STRATEGIES.values())


@dataclass(frozen=True, slots=True)
class Planned:
    """A part that is to be measured."""

    what: str
    """One sentence."""
    runs: dict[str, Run]
    """By case."""


def plan(wanted: Wanted) -> dict[str, Planned]:
    """All parts by name.

    >>> parts = plan(Wanted(3_000, 400))
    >>> parts["2b"].what
    '40,000,000 keys in 256 bins, 4 to 8 workers, 960 records/s, each worker serves 400/s by timer'
    >>> list(parts["2a"].runs)[-1]
    'no move: one worker drains a backlog'
    """
    few, wave, old = wanted.keys or FEW, Wave.fixed(wanted.rate), 4 * wanted.served
    first, two = wanted.strategies[0], f"1 to 2 workers, {wave} records/s"
    many = Case(wanted.keys or 10_000_000, wave)
    eight = Case(wanted.keys or 40_000_000, Wave.fixed(0.6 * old), 4, 8, BITS, wanted.served)
    square = replace(eight, keys=many.keys, wave=Wave(0.4 * old, 1.25 * old, period=2.0))
    paced = replace(square, keys=few)
    skewed = Case(few, Wave.fixed(2.5 * wanted.served), bits=ORDER_BITS, skewed=True,
                  service=2 * wanted.served)  # fmt: skip
    # At fixed bins, then at fixed keys per bin.
    sizes = [*((n * few, BITS) for n in (1, 4, 16)), (few, BITS - 2), (16 * few, BITS + 2)]

    def once(case: Case, strategy: Strategy = first) -> Run:
        return partial(moving.once, case=case, strategy=strategy)

    def each(case: Case) -> dict[str, Run]:
        return {str(one): once(case, one) for one in wanted.strategies}

    compared = each(many) | {DRAINED: partial(sweeps.capacity, case=many)}
    if str(ALL_AT_ONCE) in compared:
        compared[str(ALL_AT_ONCE)] = partial(
            moving.once, case=many, strategy=ALL_AT_ONCE, besides=raw.plainly
        )
    benches = {f"2^{bits} bins": {"BINS": str(bits)} for bits in (4, BITS, 12)}
    rescaled = partial(sweeps.rescale, keys=few, wave=Wave.fixed(RESCALED_RATE))
    found = {
        "2a": Planned(str(many), compared),
        "2b": Planned(str(eight), each(eight)),
        "2c": Planned(str(square), each(square)),
        "memory": Planned(f"{many}, PSS of both workers every 100 ms", {
            str(one): partial(moving.once, case=many, strategy=one, watched=True)
            for one in wanted.strategies
        }),
        "growth": Planned(f"{first}, {two}", {
            f"{keys:,} keys, 2^{bits} bins": once(Case(keys, wave, bits=bits))
            for keys, bits in sizes
        }),
        "cost": Planned(f"{few:,} keys, 2 workers, {wave} records/s", {
            label: partial(sweeps.cost, keys=few, wave=wave, bench=bench)
            for label, bench in (benches | {UNMOVABLE: {"F": "off"}}).items()
        }),
        "lead": Planned(f"2 workers, {wave} records/s, commands that move one bin at once", {
            f"{seconds:g} s": partial(sweeps.lead, wave=wave, seconds=seconds) for seconds in LEADS
        }),
        "order": Planned(str(skewed), {str(one): once(skewed, one) for one in ORDERS}),
        "pace": Planned(f"{first}, {paced}", {
            f"{name.lower()} {value:g}{' s' * (name == 'LATENCY')}":
            once(replace(paced, pace=((name, f"{value:g}"),))) for name, value in PACES
        }),
        "interval": Planned(f"{ALL_AT_ONCE}, {few:,} keys, {two}", {
            f"{one:g} s": once(Case(few, wave, interval=one), ALL_AT_ONCE) for one in INTERVALS
        }),
        "rescale": Planned(f"{few:,} keys, {RESCALED_RATE:,} records/s", {JOINED: rescaled}),
    }  # fmt: skip
    assert found.keys() == TITLES.keys()
    return found
