"""Random cases: data, flows and commands from one seed, and the shortest of those that fail."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from meander.dataflow.control.command import (
    MoveBins,
    Order,
    Overlap,
    Reconfigure,
    Strategy,
    SwitchLogic,
)
from meander.dataflow.control.logic_change import LogicUpdate
from meander.dataflow.interfaces import SourceOptions
from meander.dataflow.simulation.simulator import (
    AbortMoves,
    AddPartition,
    Command,
    Join,
    Leave,
    MovePartition,
)
from meander.state.keys.ids import Bin, WorkerId
from meander.state.times.time import from_millis
from tests.support.property import shrinking
from tests.support.property.changing import random_changes
from tests.support.property.flows import changeable, stages_of

R = TypeVar("R")
Entry = tuple[int, dict[str, Any]]


@dataclass(frozen=True)
class Case:
    seed: int
    kind: str
    workers: int
    bits: int
    partitions: tuple[tuple[Entry, ...], ...]
    commands: tuple[MoveBins, ...]
    options: SourceOptions
    control_lead: float
    max_inflight: int | None
    link_credit: int
    snapshot_interval: float
    move_memory: int
    room: int
    """Bytes of records that may wait in memory at one operator."""
    staff: tuple[
        tuple[
            int,
            Join | Leave | MovePartition | AddPartition | AbortMoves | SwitchLogic | Reconfigure,
        ],
        ...,
    ] = ()
    """Who comes and goes, and after how many commands; which partitions come, and what is ended
    before its time."""

    @property
    def script(self) -> list[Command]:
        """All that is asked for, in order."""
        script: list[Command] = list(self.commands)
        for after, change in self.staff:
            script.insert(after, change)
        return script

    def grown(self, source: str) -> list[Sequence[tuple[int, object]]]:
        """The partitions that come to a source's topic, in order."""
        return [
            c.records for c in self.script if isinstance(c, AddPartition) and c.source == source
        ]

    def __str__(self) -> str:
        lines = [f"seed {self.seed}: {self.kind}, {self.workers} workers, 2**{self.bits} bins"]
        lines += [f"  partition {p}: {list(records)}" for p, records in enumerate(self.partitions)]
        lines += [f"  command {command}" for command in self.script]
        return "\n".join([*lines, f"  {self.options}, control_lead {self.control_lead}"])


FAR = from_millis(4_102_444_800_000)
"""A time in the year 2100."""

TWO_SOURCES = ("connect", "tables")
"""The kinds of flows with a second source."""
CHANGING = ("changing", "ringing")
"""The kinds of flows whose logic can change."""

KINDS = ("chain", "rekey", "timers", "connect", "sides", "columns", "faulty", "arrival", "alone")


def random_case(seed: int, kinds: tuple[str, ...] = KINDS) -> Case:
    rng = random.Random(seed)
    workers = rng.randint(2, 4)
    bits = rng.choice([0, 2, 4, 8])
    span = rng.choice([50, 2000, 100_000])
    keys = rng.choice([1, 4, 30])
    partitions = tuple(
        random_partition(rng, rng.randint(0, 40), span, keys) for _ in range(rng.randint(1, 5))
    )
    commands = tuple(
        random_command(rng, n, workers, bits, span) for n in range(rng.choice([0, 1, 3, 6]))
    )
    kind = rng.choice(kinds)
    if kind == "alone":
        commands = tuple(replace(one, operator=rng.choice(["", "a", "c"])) for one in commands)
    return Case(
        seed=seed,
        kind=kind,
        workers=workers,
        bits=bits,
        partitions=partitions,
        commands=commands,
        options=SourceOptions(max_skew=rng.choice([0.02, 1.0, 1000.0])),
        control_lead=rng.choice([0.0, 0.25]),
        max_inflight=rng.choice([300, None]),
        link_credit=rng.choice([1, 500, 4 << 20]),
        snapshot_interval=rng.choice([0.001, 0.02, 10.0]),
        move_memory=rng.choice([1, 32 << 20]),
        room=rng.choice([1, 300, 2000, 64 << 20]),
    )


def with_some_comings_and_goings(case: Case) -> Case:
    """Of three cases one has them, and into another only partitions come."""
    match case.seed % 3:
        case 1:
            return with_growth(case, case.workers)
        case 2:
            return with_comings_and_goings(case)
    return case


def with_comings_and_goings(case: Case) -> Case:
    """The same case, into which workers join, get some of the bins, and leave again; and partitions
    come."""
    rng = random.Random(case.seed)
    joining = rng.randint(1, 3)
    everyone = case.workers + joining
    commands = tuple(
        replace(command, worker=WorkerId(rng.randrange(everyone)), others={})
        if rng.random() < 0.6
        else command
        for command in case.commands
    )
    changes: list[Join | Leave | MovePartition] = [Join() for _ in range(joining)]
    leavers = rng.sample(range(everyone), rng.randint(0, everyone - 1))
    changes.extend(Leave(f"l{number}", WorkerId(number)) for number in leavers)
    for n in range(rng.randint(0, 3)):
        partition, reader = rng.randrange(len(case.partitions)), rng.randrange(everyone)
        changes.append(MovePartition(f"h{n}", "source", partition, WorkerId(reader)))
    staff = tuple((rng.randint(0, len(commands) + n), one) for n, one in enumerate(changes))
    changed = replace(case, commands=commands, staff=(*case.staff, *staff))
    return with_growth(changed, everyone)


def with_growth(case: Case, workers: int) -> Case:
    """The same case, in which partitions come to topics, and may change hands at once."""
    rng = random.Random(case.seed)
    staff = [*case.staff]
    for n in range(rng.choice([0, 1, 1, 3])):
        growth, last = random_growth(rng, case), len(case.commands) + len(staff)
        staff.insert(rng.randint(0, len(staff)), (rng.randint(0, last), growth))
        partition, reader = len(case.partitions) + rng.randint(0, n), rng.randrange(workers)
        move_partition = MovePartition(f"g{n}", "source", partition, WorkerId(reader))
        staff.append((rng.randint(0, last + 1), move_partition))
    return replace(case, staff=tuple(staff))


def random_growth(rng: random.Random, case: Case) -> AddPartition:
    """A partition of records as others have them, of times that need not fit."""
    known = [entry for partition in case.partitions for entry in partition]
    records = rng.choices(known, k=rng.randint(0, 12)) if known else []
    source = rng.choice(["source", "other"]) if case.kind in TWO_SOURCES else "source"
    return AddPartition(source, tuple(records))


def random_partition(rng: random.Random, size: int, span: int, keys: int) -> tuple[Entry, ...]:
    steps = sorted(rng.randint(0, span) for _ in range(size))
    jitter = rng.choice([0, 0, span // 4])
    return tuple(
        (max(0, ms - rng.randint(0, jitter)), {"k": rng.randrange(keys), "v": rng.randint(-9, 9)})
        for ms in steps
    )


def random_command(rng: random.Random, n: int, workers: int, bits: int, span: int) -> MoveBins:
    count = 1 << bits
    size = rng.choice([1, max(1, count // 2), count])
    bins = tuple(Bin(b) for b in rng.sample(range(count), size))
    time = rng.choice([None, from_millis(rng.randint(0, span + 10), rng.choice([0, 0, 1]))])
    # Else bins move one after the other: with many a run would be long, and no other than with few.
    few: Sequence[Strategy] = ["batched", "fluid", "all-at-once"]
    strategy: Strategy = rng.choice(few) if len(bins) <= 16 else "all-at-once"
    command = MoveBins(f"m{n}", bins, WorkerId(rng.randrange(workers)), time, strategy)
    overlap: Overlap = rng.choice(["queue", "reject"])
    others = {bin: WorkerId(rng.randrange(workers)) for bin in rng.choice([(), bins[::2]])}
    order: Order = ("as-listed", "hottest", "coldest")[n % 3]
    precopy = rng.random() < 0.6
    return replace(command, precopy=precopy, overlap=overlap, others=others, order=order)


def with_some_loops(case: Case) -> Case:
    """One of five cases has a random flow with loops, and one of ten flow control in it too."""
    if case.seed % 10 == 4:
        return replace(case, kind="controlled")
    return replace(case, kind="loops") if case.seed % 5 == 2 else case


def with_some_forgetting(case: Case) -> Case:
    """One of ten cases has a flow that forgets keys."""
    forgets = case.seed % 10 == 6 and case.kind != "alone"
    return replace(case, kind="forgetting") if forgets else case


def with_some_windows(case: Case) -> Case:
    """One of ten cases has a flow with windows."""
    has_windows = case.seed % 10 == 0 and case.kind != "alone"
    return replace(case, kind="windows") if has_windows else case


def with_some_tables(case: Case) -> Case:
    """One of ten cases has a flow with tables."""
    has_tables = case.seed % 20 in (1, 15) and case.kind != "alone"
    return replace(case, kind="tables") if has_tables else case


def with_some_changing_logic(case: Case) -> Case:
    """One of ten cases has it in a flow with loops, and one of ten in a flow with timers."""
    kinds = {3: "changing", 9: "ringing"}
    kind = kinds.get(case.seed % 10)
    return case if kind is None else with_changing_logic(replace(case, kind=kind))


def with_changing_logic(case: Case) -> Case:
    """The same case, whose logic changes some times."""
    rng = random.Random(f"logic {case.seed}")
    operators = changeable(stages_of(case.seed, case.kind))
    span = max((ms for records in case.partitions for ms, _ in records), default=50)
    if not operators:
        return case
    changes = random_changes(rng, operators, span, rng.randint(1, 5))
    staff = tuple((rng.randint(0, len(case.commands) + n), one) for n, one in enumerate(changes))
    return replace(case, staff=(*case.staff, *staff))


def with_some_reconfigurations(case: Case) -> Case:
    """One of five cases has them."""
    return with_reconfigurations(case) if case.seed % 5 == 1 else case


def with_reconfigurations(case: Case) -> Case:
    """The same case, in which logic, bins and partitions change together some times; some of these
    changes are ended before they are decided."""
    rng = random.Random(f"plans {case.seed}")
    operators = changeable(stages_of(case.seed, case.kind)) if case.kind in CHANGING else {}
    span = max((ms for records in case.partitions for ms, _ in records), default=50)
    staff = [*case.staff]
    for n in range(rng.randint(1, 3)):
        logic = random_changes(rng, operators, span, 1)[0].updates if operators else {}
        logic = with_some_refused(logic, random.Random(f"refused {case.seed} {n}"))
        command = random_reconfiguration(rng, f"r{n}", case, span, logic)
        at = rng.randint(0, len(case.commands) + len(staff))
        staff.append((at, command))
        if rng.random() < 0.2:
            staff.append((at + 1, AbortMoves(f"{command.id} ends", command.id)))
    return replace(case, staff=tuple(staff))


def with_some_refused(
    logic: Mapping[str, LogicUpdate], rng: random.Random
) -> Mapping[str, LogicUpdate]:
    """The same logic; of one in five no worker can load one of the classes."""
    refused = [rng.choice(sorted(logic))] if logic and rng.random() < 0.2 else []
    return {**logic, **dict.fromkeys(refused, LogicUpdate("Missing", {}))}


def random_reconfiguration(
    rng: random.Random, id: str, case: Case, span: int, logic: Mapping[str, LogicUpdate]
) -> Reconfigure:
    """A reconfiguration of some of the bins and partitions, with changes of logic."""
    count, workers = 1 << case.bits, case.workers
    bins = {
        group: {
            Bin(b): WorkerId(rng.randrange(workers))
            for b in rng.sample(range(count), rng.choice([0, 1, max(1, count // 2), count]))
        }
        for group in (["", "a", "c"] if case.kind == "alone" else [""])
    }
    numbers = range(len(case.partitions))
    partitions = {
        ("source", p): WorkerId(rng.randrange(workers)) for p in numbers if rng.random() < 0.3
    }
    time = from_millis(rng.randint(0, span)) if rng.random() < 0.4 else None
    return Reconfigure(id, logic, bins, partitions, time=time)


def with_some_bins_to_and_fro(case: Case) -> Case:
    """One of ten cases has them."""
    return with_bins_to_and_fro(case) if case.seed % 10 == 8 else case


def with_bins_to_and_fro(case: Case) -> Case:
    """The same case, whose bins move at near times, so that who lets one go awaits it again."""
    rng = random.Random(case.seed)
    bins = tuple(map(Bin, range(1 << min(case.bits, 2))))
    times = sorted(rng.sample(range(100, 260), 8))
    commands = tuple(
        MoveBins(f"m{n}", bins, WorkerId(n % 2), from_millis(ms), precopy=rng.random() < 0.2)
        for n, ms in enumerate(times, 1)
    )
    partitions = tuple(random_partition(rng, 60, 400, 5) for _ in range(2))
    return replace(case, commands=commands, partitions=partitions)


def with_some_full_bins(case: Case) -> Case:
    """One of ten cases has them."""
    return with_full_bins(case) if case.seed % 10 == 5 else case


def with_full_bins(case: Case) -> Case:
    """The same case with a few bins that hold much, all of which move again and again, prepared."""
    rng = random.Random(case.seed)
    bins = tuple(map(Bin, range(4)))
    partitions = tuple(random_partition(rng, 60, 2000, 30) for _ in range(2))
    strategies: Sequence[Strategy] = ["batched", "fluid", "all-at-once"]
    times = [None, *(from_millis(ms) for ms in (800, 1600, 5000))]
    commands = tuple(
        MoveBins(f"m{n}", bins, WorkerId(n % case.workers), time, rng.choice(strategies))
        for n, time in enumerate(rng.sample([*times, None], 5), 1)
    )
    return replace(
        case, bits=2, partitions=partitions, commands=commands, max_inflight=300,
        options=SourceOptions(max_skew=0.02),
    )  # fmt: skip


def with_some_far_times(case: Case) -> Case:
    """Of four cases one has them."""
    return with_far_times(case) if case.seed % 4 == 1 else case


def with_far_times(case: Case) -> Case:
    """The same case, in which some of the commands move their bins at times far behind all
    data."""
    rng = random.Random(case.seed)
    commands = tuple(
        replace(one, time=FAR + n) if rng.random() < 0.4 else one
        for n, one in enumerate(case.commands)
    )
    return replace(case, commands=commands)


def with_aborts(case: Case) -> Case:
    """The same case, in which some of the commands are ended before they are completed."""
    rng = random.Random(case.seed)
    aborted = [(n, one) for n, one in enumerate(case.commands) if rng.random() < 0.3]
    aborts = [
        (rng.randint(n + 1, len(case.commands)), AbortMoves(f"a{n}", one.id)) for n, one in aborted
    ]
    return replace(case, staff=(*aborts, *case.staff))


def checked(case: Case, check: Callable[[Case], R]) -> R:
    """What the check of a case gives; where it raises, the test fails with the shortest schedule
    with which it still does."""
    return shrinking.checked(case, check, shortest)


def shortest(case: Case, fails: Callable[[Case], bool]) -> Case:
    """Leave out commands and records as long as the case still fails."""
    smaller = True
    while smaller:
        smaller = False
        for candidate in _smaller(case):
            if fails(candidate):
                case, smaller = candidate, True
                break
    return case


def _smaller(case: Case) -> list[Case]:
    found = [
        replace(case, commands=case.commands[:i] + case.commands[i + 1 :])
        for i in range(len(case.commands))
    ]
    found += [
        replace(case, staff=case.staff[:i] + case.staff[i + 1 :]) for i in range(len(case.staff))
    ]
    for p, records in enumerate(case.partitions):
        for half in (len(records) // 2, 1):
            if half:
                for start in range(0, len(records), half):
                    kept = records[:start] + records[start + half :]
                    found.append(
                        replace(
                            case,
                            partitions=(*case.partitions[:p], kept, *case.partitions[p + 1 :]),
                        )
                    )
    return found
