"""Bins that are to leave: nearly all of each is on the state topic before it does.

Guarantees that the layers reported of a bin stay as they are until it has left or been spared, so
that its next owner can fetch them ahead of the move; and that they lack little, or nothing as of
now, as more is written first, while records go on. What changes meanwhile is moved with the bin.
Cost: as for a snapshot of the bin; nothing here is waited for by any record.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from meander.dataflow.operators.context import OperatorContext
from meander.dataflow.operators.keyed.operator import KeyedOperator
from meander.state.keys.ids import Bin
from meander.state.layers.layer_writer import LayerWriter
from meander.state.layers.manifest import Manifest

ENTRIES = 512
"""Entries written per bin and turn, some half a millisecond."""


class Preparing:
    """Those of one worker."""

    def __init__(self, context: OperatorContext, operators: Sequence[KeyedOperator]) -> None:
        self._operators, self._pace, self._report = operators, context.throttle, context.report
        self._waiting: deque[tuple[KeyedOperator, Bin]] = deque()
        self._writing: deque[tuple[KeyedOperator, Bin, LayerWriter]] = deque()
        self._numbers: dict[Bin, int] = {}
        """The preparation that each bin is in whose layers are to stay as they are."""
        self._told: set[Bin] = set()
        """Of what the layers have been told since it was last asked for."""

    @property
    def busy(self) -> bool:
        """Whether anything is being written."""
        return bool(self._waiting or self._writing)

    def writes(self, bin: Bin) -> bool:
        """Whether a bin is being written, or will be."""
        under_way = (*self._waiting, *((keyed, bin) for keyed, bin, _ in self._writing))
        return any(one == bin for _, one in under_way)

    def take_told(self) -> set[Bin]:
        """The bins whose layers have been told of since this was last asked."""
        told, self._told = self._told, set()
        return told

    def begin(self, number: int, bin: Bin) -> None:
        """A bin is to leave."""
        self._numbers[bin] = number
        for keyed in self._operators:
            keyed.trace.pin(bin)
            frozen = bin in keyed.trace.frozen
            if not frozen and (manifest := keyed.standing(bin)) is not None:
                self._tell(manifest)
            else:
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

    def restart(self) -> None:
        """What is being written is given up, and written later."""
        self._waiting.extendleft((keyed, bin) for keyed, bin, _ in self._writing)
        self._writing.clear()

    def step(self) -> bool:
        """Write a little; whether anything has been done."""
        ready = deque(one for one in self._waiting if one[1] not in one[0].trace.frozen)
        worked = bool(ready)
        while ready and self._pace.open and self._pace.ahead.open:
            keyed, bin = one = ready.popleft()
            self._waiting.remove(one)
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
                self._tell(one[2].manifest)
            else:
                self._writing.append(one)
        return worked

    def _tell(self, manifest: Manifest) -> None:
        self._told.add(manifest.bin)
        self._report(
            {
                "event": "precopied",
                "number": self._numbers[manifest.bin],
                "operator": manifest.operator,
                "bin": int(manifest.bin),
                "manifest": manifest.to_bytes(),
            }
        )
