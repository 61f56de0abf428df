"""Commands under way: bins that are made ready, and rounds of bins that move at one time.

Guarantees that a bin counts as moved once, when every stateful operator has installed it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from meander.dataflow.control.command import MoveBins
from meander.dataflow.control.reassignment import Moves
from meander.dataflow.migration.bin_stats import Sizes
from meander.dataflow.progress.capability import Capability
from meander.state.keys.ids import Bin, WorkerId


@dataclass(frozen=True, slots=True)
class Part:
    """What one operator has of a bin, installed by its new owner."""

    operator: str
    bin: int
    time: int
    bytes: int
    keys: int


@dataclass(frozen=True, slots=True)
class BinMove:
    """A bin, who has it, and who is to have it."""

    bin: Bin
    source: WorkerId
    target: WorkerId


@dataclass(slots=True, eq=False)
class Fetch:
    """A bin that is made ready: written by who has it, then fetched by who is to have it."""

    number: int
    """Of the preparation."""
    way: BinMove
    unwritten: set[str]
    unfetched: set[str]
    """The operators that are not so far."""
    bytes: int = 0
    """Fetched so far."""

    @property
    def ready(self) -> bool:
        """Whether only what changes from now on is left to move."""
        return not self.unwritten and not self.unfetched


@dataclass(slots=True)
class BinInTransit:
    """A bin on its way to its new owner."""

    way: BinMove
    awaited: set[str]
    """The operators whose part has not been installed."""
    bytes: int = 0
    keys: int = 0


@dataclass(slots=True, eq=False)
class Round:
    """Bins that move at one time."""

    command: str
    time: int
    moves: Sequence[Moves]
    """One per target."""
    demand: Capability | None
    begun: float
    unsent: int
    """How many of the moves have not been sent."""
    decided: bool = False
    awaited: dict[int, BinInTransit] = field(default_factory=dict)
    """The bins that have not moved yet, once it is decided which have to."""

    @property
    def bins(self) -> list[Bin]:
        """All that it names."""
        return [bin for moves in self.moves for bin in moves.bins]

    @property
    def sent(self) -> bool:
        """Whether the workers know of it."""
        return not self.unsent

    def install(self, part: Part) -> BinInTransit | None:
        """Take note of a part; its bin, where that has moved with it."""
        transit = self.awaited.get(part.bin)
        if part.time != self.time or transit is None or part.operator not in transit.awaited:
            return None
        transit.awaited.discard(part.operator)
        transit.bytes += part.bytes
        transit.keys += part.keys
        return None if transit.awaited else self.awaited.pop(part.bin)


@dataclass(slots=True, eq=False)
class RunningMigration:
    """A command under way."""

    command: MoveBins
    begun: float
    waiting: list[Bin]
    """The bins that no round has yet."""
    rounds: list[Round] = field(default_factory=list)
    fetches: dict[Bin, Fetch] = field(default_factory=dict)
    there: set[Bin] = field(default_factory=set)
    """Bins that were where they are to be when their turn to be made ready came."""
    stuck: dict[Bin, str] = field(default_factory=dict)
    """Bins that stay, and why."""
    aborted: str | None = None
    """The command that has ended it."""
    seconds: float = 0.0
    """How long it has made bins ready or moved them: not, how long it has waited."""
    looked: float | None = None
    bins: int = 0
    bytes: int = 0
    keys: int = 0

    @property
    def undecided(self) -> list[Round]:
        """The rounds before whose times other commands may still come."""
        return [round for round in self.rounds if not round.decided]

    def look(self, now: float) -> None:
        """Called each turn, so that it knows how long it takes."""
        if self.looked is not None and (self.preparing or any(r.decided for r in self.rounds)):
            self.seconds += now - self.looked
        self.looked = now

    def count(self, moved: BinInTransit) -> None:
        """One more bin has moved."""
        self.bins += 1
        self.bytes += moved.bytes
        self.keys += moved.keys

    def is_ready(self, bin: Bin) -> bool:
        """Whether next to nothing is left to move of a bin."""
        return bin in self.there or (bin in self.fetches and self.fetches[bin].ready)

    @property
    def preparing(self) -> bool:
        """Whether bins are being made ready."""
        return any(not fetch.ready for fetch in self.fetches.values())

    @property
    def ready(self) -> int:
        """How many bins have been fetched ahead, of those that have not moved."""
        return sum(fetch.ready for fetch in self.fetches.values())

    def eta(self, sizes: Sizes) -> float | None:
        """Seconds until its end, if it goes on as so far; None where it has not got anywhere."""
        left = [bin for bin in self.named if bin not in self.fetches or not self.fetches[bin].ready]
        done = self.bytes + sum(fetch.bytes for fetch in self.fetches.values())
        to_do = sum(map(sizes.of, left))
        named = any(round.time == self.command.time for round in self.rounds)
        return None if named or not done else round(self.seconds * to_do / done, 1)

    @property
    def named(self) -> set[Bin]:
        """The bins that have not moved, and may."""
        return {*self.waiting, *(bin for round in self.rounds for bin in round.bins)}


def apart(ways: Iterable[BinMove]) -> list[BinMove]:
    """Some of these that share no worker: a matching, of those first whose workers have most to do,
    so that there are few rounds (live reconfiguration, 3.2).

    >>> a, b, c = (WorkerId(n) for n in range(3))
    >>> ways = [BinMove(Bin(n), *way) for n, way in enumerate([(a, b), (a, c), (b, c), (a, c)])]
    >>> apart(ways)
    [BinMove(bin=1, source=0, target=2)]
    """
    ways = list(ways)
    load = Counter(worker for way in ways for worker in (way.source, way.target))
    most = sorted(ways, key=lambda way: sorted((-load[way.source], -load[way.target])))
    busy: set[WorkerId] = set()
    chosen = []
    for way in most:
        if busy.isdisjoint((way.source, way.target)):
            busy |= {way.source, way.target}
            chosen.append(way)
    return chosen


def together(ways: Iterable[BinMove], chosen: Iterable[BinMove], most: int) -> list[BinMove]:
    """With the ways chosen, others between the same two workers: up to so many of each.

    >>> a, b = WorkerId(0), WorkerId(1)
    >>> there, back = (a, b), (b, a)
    >>> ways = [BinMove(Bin(n), *way) for n, way in enumerate([there, back, there, there])]
    >>> [int(way.bin) for way in together(ways, ways[:1], most=2)]
    [0, 2]
    """
    by_pair: dict[tuple[WorkerId, WorkerId], list[BinMove]] = {}
    for way in ways:
        by_pair.setdefault((way.source, way.target), []).append(way)
    return [way for one in chosen for way in by_pair[one.source, one.target][:most]]


def rounds_of_all(ways: Iterable[BinMove], most: int = 1) -> list[list[BinMove]]:
    """All rounds of a batched command, as they would be if every bin were ready, with so many bins
    at most of each pair of workers.

    >>> a, b, c, d = (WorkerId(n) for n in range(4))
    >>> [[int(way.bin) for way in round] for round in rounds_of_all(
    ...     BinMove(Bin(n), *way) for n, way in enumerate([(a, c), (a, d), (b, c), (b, d)]))]
    [[0, 3], [1, 2]]
    """
    left, rounds = list(ways), []
    while left:
        rounds.append(together(left, apart(left), most))
        left = [way for way in left if way not in rounds[-1]]
    return rounds
