"""The bin selector: which bins of a command move next, by its strategy and its order.

Guarantees that no worker takes part in two moves of one batched round, except for bins between the
same two workers. Owners are those just before `now`, the least time that is not closed: an
undecided change may already be sent for that time. Cost: O(waiting bins) per choice.
"""

from __future__ import annotations

from collections.abc import Sequence

from meander.dataflow.control.colocation import ColocationGroups
from meander.dataflow.control.command import MoveBins
from meander.dataflow.control.routing import Routing
from meander.dataflow.migration.bin_stats import Sizes
from meander.dataflow.migration.rounds import (
    BinMove,
    RunningMigration,
    all_rounds,
    disjoint_moves,
    with_same_pairs,
)
from meander.state.keys.ids import Bin, WorkerId
from meander.state.times.time import MIN_TIME

PER_PAIR = 64
"""The most bins that two workers move in one prepared round of a batched command."""


class BinSelector:
    """A selector of bins for all commands. Bins have their numbers among all groups here."""

    def __init__(self, groups: ColocationGroups, routing: Routing, sizes: Sizes) -> None:
        self._groups, self._routing, self._sizes = groups, routing, sizes
        self.now = MIN_TIME
        """The least time that is not closed."""

    def bins_of(self, command: MoveBins) -> list[Bin]:
        """Return the bins of a command, each once, in the order of their moves."""
        bins = [self._groups.number(command.operator, bin) for bin in dict.fromkeys(command.bins)]
        if command.order != "as-listed":
            bins.sort(key=self._sizes.heat, reverse=command.order == "hottest")
        return bins

    def move_of(self, command: MoveBins, bin: Bin) -> BinMove | None:
        """Return the move that a bin would make now; None where its owner is the target."""
        own = self._groups.local_bin(bin)
        source, target = self._owner(bin), command.target(own)
        return None if source == target else BinMove(own, source, target)

    def moved_away(self, running: RunningMigration) -> list[Bin]:
        """Return the waiting bins that another command has moved away from their named source."""
        sources, own = running.command.sources, self._groups.local_bin
        named = [bin for bin in running.waiting if own(bin) in sources]
        return [bin for bin in named if sources[own(bin)] != self._owner(bin)]

    def next(self, running: RunningMigration, ready: bool) -> list[Bin]:
        """Return the bins of the next round; with `ready`, prepared bins only."""
        command, waiting = running.command, running.waiting
        precopy = command.precopy and ready
        fit = [bin for bin in waiting if not precopy or running.is_ready(bin)]
        match command.strategy:
            case "all-at-once":
                return fit if len(fit) == len(waiting) else []
            case "fluid":
                return fit[:1]
            case "batched":
                moves = {bin: self.move_of(command, bin) for bin in fit}
                going = [move for bin in fit if (move := moves[bin]) is not None]
                max_per_pair = PER_PAIR if precopy else 1
                chosen = {None, *with_same_pairs(going, disjoint_moves(going), max_per_pair)}
                return [bin for bin in fit if moves[bin] in chosen]

    def rounds(self, command: MoveBins) -> Sequence[Sequence[BinMove]]:
        """Return all rounds of a command as if it started now."""
        found = (self.move_of(command, bin) for bin in self.bins_of(command))
        moves = [move for move in found if move is not None]
        match command.strategy:
            case "all-at-once":
                return [moves] if moves else []
            case "fluid":
                return [[move] for move in moves]
            case "batched":
                return all_rounds(moves, PER_PAIR if command.precopy else 1)

    def _owner(self, bin: Bin) -> WorkerId:
        return self._routing.owner(bin, self.now - 1)
