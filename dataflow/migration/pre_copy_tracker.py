"""The pre-copies of all commands: the owner writes a bin, then its next owner prefetches it.

Guarantees that a bin is prepared for one command at a time, and that both workers learn of a
cancelled move. The memory limits how many bins are prepared at once (I6). Each preparation has a
number, so late reports about a cancelled one have no effect.
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
from meander.dataflow.migration.rounds import BinMove, PreCopy, RunningMigration
from meander.state.keys.ids import Bin, WorkerId
from meander.state.layers.layer_loader import AHEAD_BYTES
from meander.state.layers.manifest import Manifest


class PreCopyTracker:
    """A tracker of the pre-copies of all running commands. Bins have their numbers among all groups
    here."""

    def __init__(
        self,
        running: Sequence[RunningMigration],
        groups: ColocationGroups,
        sizes: Sizes,
        most_bytes: int,
        send: Callable[[WorkerId, Instruction], None],
    ) -> None:
        self._running, self._groups, self._sizes, self._send = running, groups, sizes, send
        self._most = most_bytes
        self._numbers = count(1)

    @property
    def room(self) -> int:
        """The number of further bytes that may be in preparation."""
        under_way = [
            self.weight(bin)
            for running in self._running
            for bin, pre_copy in running.pre_copies.items()
            if not pre_copy.ready
        ]
        return self._most - sum(under_way)

    def weight(self, bin: Bin) -> int:
        """Return how many bytes of a bin may be in memory during its preparation."""
        return min(self._sizes.of(bin) or AHEAD_BYTES, AHEAD_BYTES)

    def start(self, running: RunningMigration, bin: Bin, move: BinMove) -> None:
        """Start to prepare a bin for a command."""
        operators = self._groups.operators(bin)
        pre_copy = PreCopy(next(self._numbers), move, set(operators), set(operators))
        running.pre_copies[bin] = pre_copy
        self._send(move.source, StartPreCopy(pre_copy.number, bin))

    def claim(self, running: RunningMigration, bin: Bin) -> bool:
        """Return whether a command may prepare a bin; a bin is prepared for one command at a time.

        A command that moves the bin as soon as it is ready precedes one whose time lies ahead.
        """
        for other in self._running:
            if bin in other.pre_copies:
                if not _soon(running, bin) or _soon(other, bin):
                    return False
                self.cancel(other, bin)
        return True

    def cancel(self, running: RunningMigration, bin: Bin) -> None:
        """Cancel the move of a prepared bin at both workers."""
        move = running.pre_copies.pop(bin).move
        for worker in (move.source, move.target):
            self._send(worker, CancelMove(bin))

    # -- reports of workers

    def precopied(self, number: int, manifest: Manifest) -> None:
        """Note that an operator's part of a bin lies on the state topic in the layers of a
        manifest."""
        for pre_copy in self._of(number):
            bin = self._groups.number(manifest.operator, manifest.bin)
            self._sizes.note(manifest.operator, bin, size_of(manifest))
            if manifest.operator in pre_copy.unwritten:
                pre_copy.unwritten.discard(manifest.operator)
                self._send(pre_copy.move.target, Prefetch(number, manifest))

    def prefetched(self, number: int, operator: str, bytes: int) -> None:
        """Note that the next owner has fetched an operator's part of a bin."""
        for pre_copy in self._of(number):
            if operator in pre_copy.unfetched:
                pre_copy.unfetched.discard(operator)
                pre_copy.bytes += bytes

    def bin_unreadable(self, number: int | None, operator: str, bin: Bin) -> list[RunningMigration]:
        """Let the owner write an unreadable bin again; return the commands that had prepared it."""
        numbered = self._groups.number(operator, bin)
        concerned = []
        for running in self._running:
            pre_copy = running.pre_copies.get(numbered)
            if pre_copy is not None and pre_copy.number == number:
                self._send(pre_copy.move.source, Rewrite(operator, bin, None))
                self.cancel(running, numbered)
                concerned.append(running)
        return concerned

    def _of(self, number: int) -> list[PreCopy]:
        """Return the preparation of a number, unless it was cancelled."""
        return [f for one in self._running for f in one.pre_copies.values() if f.number == number]


def _soon(running: RunningMigration, bin: Bin) -> bool:
    """Return whether a command moves a bin as soon as it is ready."""
    return bin in running.waiting and not running.lies_ahead
