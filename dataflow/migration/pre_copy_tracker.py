"""Bins that are made ready to move: written by who has them, then fetched by who is to have them.

Guarantees that a bin is made ready for one command at a time, that no more are at once than there
is memory for (I6), and that both workers hear of it when a bin is to stay. Each preparation has a
number, so that what is said of one that has been called off counts for nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count

from meander.dataflow.control.colocation import ColocationGroups
from meander.dataflow.control.instructions import (
    CancelMove,
    Instruction,
    Prefetch,
    Rewrite,
    StartPreCopy,
)
from meander.dataflow.migration.bin_stats import Sizes, size_of
from meander.dataflow.migration.rounds import BinMove, Fetch, RunningMigration
from meander.state.keys.ids import Bin, WorkerId
from meander.state.layers.layer_loader import AHEAD_BYTES
from meander.state.layers.manifest import Manifest


class Fetching:
    """Those of all commands that run. Bins have their numbers among all groups'."""

    def __init__(
        self,
        running: Sequence[RunningMigration],
        groups: ColocationGroups,
        sizes: Sizes,
        most_bytes: int,
        tell: Callable[[WorkerId, Instruction], None],
    ) -> None:
        self._running, self._groups, self._sizes, self._tell = running, groups, sizes, tell
        self._most = most_bytes
        self._numbers = count(1)

    @property
    def room(self) -> int:
        """How many bytes more may be made ready at once."""
        under_way = [
            self.weight(bin)
            for running in self._running
            for bin, fetch in running.fetches.items()
            if not fetch.ready
        ]
        return self._most - sum(under_way)

    def weight(self, bin: Bin) -> int:
        """How many bytes of a bin may be in memory while it is made ready."""
        return min(self._sizes.of(bin) or AHEAD_BYTES, AHEAD_BYTES)

    def begin(self, running: RunningMigration, bin: Bin, way: BinMove) -> None:
        """Have a bin made ready for a command."""
        operators = self._groups.operators(bin)
        fetch = Fetch(next(self._numbers), way, set(operators), set(operators))
        running.fetches[bin] = fetch
        self._tell(way.source, StartPreCopy(fetch.number, bin))

    def claim(self, running: RunningMigration, bin: Bin) -> bool:
        """Whether a bin can be made ready for a command: for one at a time, and for one whose bin
        moves as soon as it is ready rather than for one that has a time yet to come for it."""
        for other in self._running:
            if bin in other.fetches:
                if bin not in running.waiting or bin in other.waiting:
                    return False
                self.call_off(other, bin)
        return True

    def call_off(self, running: RunningMigration, bin: Bin) -> None:
        """What was prepared of a bin is not to move."""
        way = running.fetches.pop(bin).way
        for worker in (way.source, way.target):
            self._tell(worker, CancelMove(bin))

    # -- what the workers report

    def precopied(self, number: int, manifest: Manifest) -> None:
        """All of an operator's bin lies on the topic, in these layers."""
        for fetch in self._of(number):
            bin = self._groups.number(manifest.operator, manifest.bin)
            self._sizes.note(manifest.operator, bin, size_of(manifest))
            if manifest.operator in fetch.unwritten:
                fetch.unwritten.discard(manifest.operator)
                self._tell(fetch.way.target, Prefetch(number, manifest))

    def staged(self, number: int, operator: str, bytes: int) -> None:
        """An operator's part of a bin has been fetched."""
        for fetch in self._of(number):
            if operator in fetch.unfetched:
                fetch.unfetched.discard(operator)
                fetch.bytes += bytes

    def bin_unreadable(self, number: int | None, operator: str, bin: Bin) -> list[RunningMigration]:
        """Layers of an operator's bin cannot be read ahead: they are written anew. The commands
        that it was made ready for, none by now."""
        numbered = self._groups.number(operator, bin)
        concerned = []
        for running in self._running:
            fetch = running.fetches.get(numbered)
            if fetch is not None and fetch.number == number:
                self._tell(fetch.way.source, Rewrite(operator, bin, None))
                self.call_off(running, numbered)
                concerned.append(running)
        return concerned

    def _of(self, number: int) -> list[Fetch]:
        """The preparation of a number, if it has not been called off."""
        return [f for one in self._running for f in one.fetches.values() if f.number == number]
