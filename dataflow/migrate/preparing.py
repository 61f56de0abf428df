"""Bins that are to leave: all of each is brought to the state topic while records go on.

Guarantees that the layers reported of a bin stay as they are until it has left or been spared, so
that its next owner can fetch them ahead of the move. What changes meanwhile goes into later layers.
Cost: as for a snapshot of the bin; nothing here is waited for by any record.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from dataflow.operators.keyed import Keyed
from dataflow.pace import Pace
from state.ids import Bin
from state.layer import Extraction

ENTRIES = 512
"""Entries written per bin and turn, some half a millisecond."""


class Preparing:
    """Those of one worker."""

    def __init__(
        self,
        operators: Sequence[Keyed],
        pace: Pace,
        report: Callable[[dict[str, object]], None],
    ) -> None:
        self._operators, self._pace, self._report = operators, pace, report
        self._waiting: deque[tuple[Keyed, Bin]] = deque()
        self._writing: deque[tuple[Keyed, Bin, Extraction]] = deque()
        self._numbers: dict[Bin, int] = {}
        """The preparation that each bin is in whose layers are to stay as they are."""
        self._written: set[Bin] = set()
        """What has been written since it was last asked for."""

    @property
    def busy(self) -> bool:
        """Whether anything is being written."""
        return bool(self._waiting or self._writing)

    def writes(self, bin: Bin) -> bool:
        """Whether a bin is being written, or will be."""
        under_way = (*self._waiting, *((keyed, bin) for keyed, bin, _ in self._writing))
        return any(one == bin for _, one in under_way)

    def take_written(self) -> set[Bin]:
        """The bins that have been written since this was last asked."""
        written, self._written = self._written, set()
        return written

    def begin(self, number: int, bin: Bin) -> None:
        """A bin is to leave."""
        self._numbers[bin] = number
        for keyed in self._operators:
            keyed.trace.pin(bin)
            self._waiting.append((keyed, bin))

    def spare(self, bin: Bin) -> None:
        """It is to stay, after all."""
        if bin in self._numbers:
            for keyed, writing, _ in self._writing:
                if writing == bin:
                    keyed.trace.cancel(bin)
            self.done_with(bin)
            for keyed in self._operators:
                keyed.trace.unpin(bin)

    def done_with(self, bin: Bin) -> None:
        """It leaves now, prepared or not: what is written from here on is the last."""
        self._numbers.pop(bin, None)
        self._waiting = deque(one for one in self._waiting if one[1] != bin)
        self._writing = deque(one for one in self._writing if one[1] != bin)

    def step(self) -> bool:
        """Write a little; whether anything has been done."""
        worked = bool(self._waiting)
        while self._waiting and self._pace.open and self._pace.ahead.open:
            keyed, bin = self._waiting.popleft()
            with self._pace.spending():
                extraction = self._pace.ahead.admit(keyed.snapshot(bin))
            self._writing.append((keyed, bin, extraction))
        return self._write() or worked

    def _write(self) -> bool:
        """A slice of each, as long as there is time; whether any was written."""
        worked = False
        for one in self._pace.turns(self._writing):
            worked = True
            if one[2].step(ENTRIES):
                self._tell(one[2])
            else:
                self._writing.append(one)
        return worked

    def _tell(self, extraction: Extraction) -> None:
        manifest = extraction.manifest
        self._written.add(manifest.bin)
        self._report(
            {
                "event": "prepared",
                "number": self._numbers[manifest.bin],
                "operator": manifest.operator,
                "bin": int(manifest.bin),
                "manifest": manifest.to_bytes(),
            }
        )
