"""Running commands: their prepared bins, and their rounds of bins that move at one time.

Guarantees that a bin counts as moved once, when every stateful operator has installed it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from meander.dataflow.control.command import MoveBins
from meander.dataflow.control.reassignment import Moves
from meander.dataflow.control.reports import BinInstalled
from meander.dataflow.migration.bin_stats import Sizes
from meander.dataflow.progress.capability import Capability
from meander.state.keys.ids import Bin, WorkerId


@dataclass(frozen=True, slots=True)
class BinMove:
    """A bin with its owner and its next owner."""

    bin: Bin
    source: WorkerId
    target: WorkerId


@dataclass(slots=True, eq=False)
class PreCopy:
    """A bin in preparation: its owner writes it, then its next owner prefetches it."""

    number: int
    """The number of the preparation."""
    move: BinMove
    unwritten: set[str]
    unfetched: set[str]
    """The operators whose parts are not written, or not fetched."""
    bytes: int = 0
    """The bytes fetched so far."""

    @property
    def ready(self) -> bool:
        """Whether only later changes are left to move."""
        return not self.unwritten and not self.unfetched


@dataclass(slots=True)
class BinInTransit:
    """A bin on its way to its new owner."""

    move: BinMove
    awaited: set[str]
    """The operators that have not installed their part."""
    bytes: int = 0
    keys: int = 0


@dataclass(slots=True, eq=False)
class Round:
    """A set of bins that move at one time."""

    command: str
    time: int
    moves: Sequence[Moves]
    """The moves, one per target."""
    advance_request: Capability | None
    started_at: float
    unsent: int
    """The number of moves that are not sent."""
    decided: bool = False
    awaited: dict[int, BinInTransit] = field(default_factory=dict)
    """The bins that have not moved yet, once it is decided which bins move."""

    @property
    def bins(self) -> list[Bin]:
        """All bins that the round names."""
        return [bin for moves in self.moves for bin in moves.bins]

    @property
    def sent(self) -> bool:
        """Whether the workers have received the round."""
        return not self.unsent

    def install(self, part: BinInstalled) -> BinInTransit | None:
        """Note an installed part; return its bin once all of it has moved."""
        transit = self.awaited.get(part.bin)
        if part.time != self.time or transit is None or part.operator not in transit.awaited:
            return None
        transit.awaited.discard(part.operator)
        transit.bytes += part.bytes
        transit.keys += part.keys
        return None if transit.awaited else self.awaited.pop(part.bin)


@dataclass(slots=True, eq=False)
class RunningMigration:
    """A command that moves bins."""

    command: MoveBins
    started_at: float
    waiting: list[Bin]
    """The bins that are in no round yet."""
    rounds: list[Round] = field(default_factory=list)
    pre_copies: dict[Bin, PreCopy] = field(default_factory=dict)
    already_there: set[Bin] = field(default_factory=set)
    """Bins that needed no preparation, since their owner was the target or has to write them at the
    move."""
    kept_in_place: dict[Bin, str] = field(default_factory=dict)
    """Bins that stay at their owner, and the reason."""
    aborted: str | None = None
    """The id of the command that aborted this one."""
    seconds: float = 0.0
    """The seconds in which it prepared or moved bins, without waiting."""
    updated_at: float | None = None
    bins: int = 0
    bytes: int = 0

    @property
    def undecided(self) -> list[Round]:
        """The rounds before whose times other commands may still come."""
        return [round for round in self.rounds if not round.decided]

    @property
    def lies_ahead(self) -> bool:
        """Whether the named time of the command lies ahead, so that all its bins wait for it."""
        return any(round.time == self.command.time for round in self.undecided)

    def update_seconds(self, now: float) -> None:
        """Update the seconds of work; call this once a turn."""
        if self.updated_at is not None and (self.preparing or any(r.decided for r in self.rounds)):
            self.seconds += now - self.updated_at
        self.updated_at = now

    def count(self, moved: BinInTransit) -> None:
        """Count a moved bin."""
        self.bins += 1
        self.bytes += moved.bytes

    def is_ready(self, bin: Bin) -> bool:
        """Return whether next to nothing of a bin is left to move."""
        return bin in self.already_there or (bin in self.pre_copies and self.pre_copies[bin].ready)

    @property
    def preparing(self) -> bool:
        """Whether any bin is in preparation."""
        return any(not pre_copy.ready for pre_copy in self.pre_copies.values())

    @property
    def ready(self) -> int:
        """The number of prefetched bins that have not moved."""
        return sum(pre_copy.ready for pre_copy in self.pre_copies.values())

    def eta(self, sizes: Sizes) -> float | None:
        """Return the seconds until the end at the rate so far; None where nothing has moved."""
        left = [
            bin
            for bin in self.named
            if bin not in self.pre_copies or not self.pre_copies[bin].ready
        ]
        done = self.bytes + sum(pre_copy.bytes for pre_copy in self.pre_copies.values())
        to_do = sum(map(sizes.of, left))
        named = any(round.time == self.command.time for round in self.rounds)
        return None if named or not done else round(self.seconds * to_do / done, 1)

    @property
    def named(self) -> set[Bin]:
        """The bins that have not moved and still may."""
        return {*self.waiting, *(bin for round in self.rounds for bin in round.bins)}


def disjoint_moves(moves: Iterable[BinMove]) -> list[BinMove]:
    """Return some moves that share no worker: a matching (live reconfiguration, 3.2).

    Moves of the busiest workers come first, so that there are few rounds.

    >>> a, b, c = (WorkerId(n) for n in range(3))
    >>> moves = [BinMove(Bin(n), *move) for n, move in enumerate([(a, b), (a, c), (b, c), (a, c)])]
    >>> disjoint_moves(moves)
    [BinMove(bin=1, source=0, target=2)]
    """
    moves = list(moves)
    load = Counter(worker for move in moves for worker in (move.source, move.target))
    max_per_pair = sorted(moves, key=lambda move: sorted((-load[move.source], -load[move.target])))
    busy: set[WorkerId] = set()
    chosen = []
    for move in max_per_pair:
        if busy.isdisjoint((move.source, move.target)):
            busy |= {move.source, move.target}
            chosen.append(move)
    return chosen


def with_same_pairs(
    moves: Iterable[BinMove], chosen: Iterable[BinMove], max_per_pair: int
) -> list[BinMove]:
    """Return the chosen moves and others between the same two workers, up to `max_per_pair` of each
    pair.

    >>> a, b = WorkerId(0), WorkerId(1)
    >>> there, back = (a, b), (b, a)
    >>> moves = [BinMove(Bin(n), *move) for n, move in enumerate([there, back, there, there])]
    >>> [int(move.bin) for move in with_same_pairs(moves, moves[:1], max_per_pair=2)]
    [0, 2]
    """
    by_pair: dict[tuple[WorkerId, WorkerId], list[BinMove]] = {}
    for move in moves:
        by_pair.setdefault((move.source, move.target), []).append(move)
    return [move for one in chosen for move in by_pair[one.source, one.target][:max_per_pair]]


def all_rounds(moves: Iterable[BinMove], max_per_pair: int = 1) -> list[list[BinMove]]:
    """Return all rounds of a batched command, once every bin is ready, with at most `max_per_pair`
    bins per pair of workers.

    >>> a, b, c, d = (WorkerId(n) for n in range(4))
    >>> [[int(move.bin) for move in round] for round in all_rounds(
    ...     BinMove(Bin(n), *move) for n, move in enumerate([(a, c), (a, d), (b, c), (b, d)]))]
    [[0, 3], [1, 2]]
    """
    left, rounds = list(moves), []
    while left:
        rounds.append(with_same_pairs(left, disjoint_moves(left), max_per_pair))
        left = [move for move in left if move not in rounds[-1]]
    return rounds
