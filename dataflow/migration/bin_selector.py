"""Which bins of a command move next, and which way: its strategy and its order.

Guarantees that no worker is in two moves of one batched round, but for bins between the same two.
Who has a bin is asked as of just before `now`, the least time that is not forsworn: at that time
itself a change may have been sent that is not decided. Cost: O(bins that wait) per choice.
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
    apart,
    rounds_of_all,
    together,
)
from meander.state.keys.ids import Bin, WorkerId
from meander.state.times.time import MIN_TIME

PER_PAIR = 64
"""Bins that two workers move in one round of a batched command, where little is left to move."""


class BinSelector:
    """For all commands. Bins have their numbers among all groups'."""

    def __init__(self, groups: ColocationGroups, routing: Routing, sizes: Sizes) -> None:
        self._groups, self._routing, self._sizes = groups, routing, sizes
        self.now = MIN_TIME
        """The least time that is not forsworn."""

    def bins_of(self, command: MoveBins) -> list[Bin]:
        """What a command names, each once, in the order in which they are to move."""
        bins = [self._groups.number(command.operator, bin) for bin in dict.fromkeys(command.bins)]
        if command.order != "as-listed":
            bins.sort(key=self._sizes.heat, reverse=command.order == "hottest")
        return bins

    def way(self, command: MoveBins, bin: Bin) -> BinMove | None:
        """Which way a bin would go now; None where it is there."""
        own = self._groups.own(bin)
        source, target = self._owner(bin), command.target(own)
        return None if source == target else BinMove(own, source, target)

    def taken_away(self, running: RunningMigration) -> list[Bin]:
        """The bins that another command has taken from whom they were to be taken from."""
        sources, own = running.command.sources, self._groups.own
        named = [bin for bin in running.waiting if own(bin) in sources]
        return [bin for bin in named if sources[own(bin)] != self._owner(bin)]

    def next(self, running: RunningMigration, ready: bool) -> list[Bin]:
        """The bins that come next; with `ready`, only of those that are."""
        command, waiting = running.command, running.waiting
        precopy = command.precopy and ready
        fit = [bin for bin in waiting if not precopy or running.is_ready(bin)]
        match command.strategy:
            case "all-at-once":
                return fit if len(fit) == len(waiting) else []
            case "fluid":
                return fit[:1]
            case "batched":
                ways = {bin: self.way(command, bin) for bin in fit}
                going = [way for bin in fit if (way := ways[bin]) is not None]
                most = PER_PAIR if precopy else 1
                chosen = {None, *together(going, apart(going), most)}
                return [bin for bin in fit if ways[bin] in chosen]

    def rounds(self, command: MoveBins) -> Sequence[Sequence[BinMove]]:
        """All rounds of a command, as they would be if it began now."""
        found = (self.way(command, bin) for bin in self.bins_of(command))
        ways = [way for way in found if way is not None]
        match command.strategy:
            case "all-at-once":
                return [ways] if ways else []
            case "fluid":
                return [[way] for way in ways]
            case "batched":
                return rounds_of_all(ways, PER_PAIR if command.precopy else 1)

    def _owner(self, bin: Bin) -> WorkerId:
        return self._routing.owner(bin, self.now - 1)
