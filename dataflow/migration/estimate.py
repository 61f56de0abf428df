"""Estimates of commands that move bins: their rounds, bytes and seconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from meander.dataflow.migration.rounds import BinMove, RunningMigration
from meander.state.keys.ids import Bin


@dataclass(frozen=True, slots=True)
class MigrationEstimate:
    """An estimate of the rounds of a command and of their duration."""

    rounds: Sequence[Sequence[BinMove]]
    sizes: Mapping[Bin, int]
    speed: float | None
    """The bytes per second of past moves."""

    def bytes(self, bin: Bin) -> int:
        """Return about how many bytes of a bin lie on the state topic, as far as workers have
        reported."""
        return self.sizes[bin]

    @property
    def seconds(self) -> float | None:
        """The seconds that the command would take; None without past moves."""
        size = sum(self.bytes(move.bin) for round in self.rounds for move in round)
        return None if not self.speed else round(size / self.speed, 1)


class TransferRate:
    """A measurement of how fast commands have moved bins."""

    def __init__(self) -> None:
        self._bytes, self._seconds = 0, 0.0

    def note(self, ended: RunningMigration) -> None:
        """Add a command that has ended."""
        if ended.bytes:
            self._bytes += ended.bytes
            self._seconds += ended.seconds

    @property
    def bytes_per_second(self) -> float | None:
        """The rate of past moves; None where no bin has moved."""
        return self._bytes / self._seconds if self._seconds else None
