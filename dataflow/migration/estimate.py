"""What commands that move bins would do, and how long they may take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from meander.dataflow.migration.rounds import BinMove, RunningMigration
from meander.state.keys.ids import Bin


@dataclass(frozen=True, slots=True)
class MigrationEstimate:
    """What a command would do."""

    rounds: Sequence[Sequence[BinMove]]
    sizes: Mapping[Bin, int]
    speed: float | None
    """Bytes per second of what has been moved so far."""

    def bytes(self, bin: Bin) -> int:
        """About how many a bin takes on the state topic, as far as is known."""
        return self.sizes[bin]

    @property
    def seconds(self) -> float | None:
        """About how long it would take; None where nothing has been moved yet."""
        size = sum(self.bytes(way.bin) for round in self.rounds for way in round)
        return None if not self.speed else round(size / self.speed, 1)


class TransferRate:
    """How fast commands have moved bins so far."""

    def __init__(self) -> None:
        self._bytes, self._seconds = 0, 0.0

    def note(self, ended: RunningMigration) -> None:
        """A command has come to its end."""
        if ended.bytes:
            self._bytes += ended.bytes
            self._seconds += ended.seconds

    @property
    def bytes_per_second(self) -> float | None:
        """None where none has moved anything."""
        return self._bytes / self._seconds if self._seconds else None
