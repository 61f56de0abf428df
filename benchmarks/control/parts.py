"""The parts of the benchmark, and the runs of each."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from benchmarks.control import placing, scaling, ways
from benchmarks.control.changes import CHANGES, Load, Run, to_and_fro
from benchmarks.control.day import Day

TITLES = {
    "changes": "Changes of the plan", "changes-4m": "Changes of the plan, four times the keys",
    "placement": "Placement", "placement-4m": "Placement, four times the keys",
    "ways": "The same change in other ways", "day": "Autoscalers under the load of a day",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is measured."""

    load: Load
    more: Load
    """With more keys."""
    day: Day

    def at(self, rate: int) -> Scale:
        """Return the same with another rate of records.

        >>> FULL.at(3_000).load.rate
        3000
        """
        load, more = (replace(one, rate=rate) for one in (self.load, self.more))
        return replace(self, load=load, more=more)


FULL = Scale(Load(1_000_000, 5_000), Load(4_000_000, 5_000), Day(180.0, 400))
SMALL = Scale(
    Load(20_000, 1_000, steady=3.0, repeats=1), Load(40_000, 1_000, steady=3.0, repeats=1),
    Day(40.0, 200),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Planned:
    """A part that is to be measured."""

    what: str
    """One sentence."""
    runs: dict[tuple[str, ...], Run]
    """Each by the cases that it measures."""


def plan(scale: Scale) -> dict[str, Planned]:
    """All parts by name.

    >>> plan(FULL)["changes"].what
    '1,000,000 keys in 256 bins, 5,000 records/s'
    >>> [*plan(FULL)["changes"].runs][1]
    ('scaling out', 'scaling in')
    """

    def changes(load: Load) -> Planned:
        runs: dict[tuple[str, ...], Run] = {
            tuple(dict.fromkeys(one.names)): partial(to_and_fro, load=load, change=one)
            for one in CHANGES
        }
        return Planned(str(load), runs)

    def placement(load: Load) -> Planned:
        what = f"{load}, a Spark cluster of two workers"
        return Planned(what, {(placing.NAME,): partial(placing.placement, load=load)})

    day = scale.day
    found = {
        "changes": changes(scale.load), "changes-4m": changes(scale.more),
        "placement": placement(scale.load), "placement-4m": placement(scale.more),
        "ways": Planned(f"a quarter of the bins, {scale.load}", {
            (way,): partial(ways.once, load=scale.load, way=way) for way in ways.WAYS
        }),
        "day": Planned(
            f"a day in {day.seconds:g} s, {day.mean:.2f} workers active on average,"
            f" each worker serves {day.service:g}/s by timer", {
                (one.name,): partial(scaling.run, day=day, plan=one)
                for one in (*scaling.FIXED, *scaling.AUTOSCALERS)
            },
        ),
    }  # fmt: skip
    assert found.keys() == TITLES.keys()
    return found
