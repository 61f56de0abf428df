"""A member's updates on their way to its peers, merged for whoever lags behind.

Guarantees that each peer hears of all changes, in order, and that at most `WINDOW` updates wait for
one that takes none (I6): those after them add up in one pending update of its own, which leaves
once the peer has said that it has heard enough of the others; rulings in it are at most as many as
records in flight. To merge consecutive updates is safe, as nothing follows from the ones between
that does not from all. Invariant: updates are counted as they were made, so a base, which follows
from so many of each member, says the same to all.
Cost: an encoding per update and window, a word back for every quarter of a window.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from meander.dataflow.control.timestamp_overrides import Rulings, TimestampOverride
from meander.dataflow.interfaces import Frame, Links
from meander.dataflow.progress.change_batch import ChangeBatch
from meander.dataflow.wire import Change, encode_heard, encode_progress
from meander.schemas.errors import MeanderError
from meander.state.keys.ids import WorkerId, member_name

WINDOW = 1024
"""Updates that may be on their way to a peer."""


@dataclass(slots=True)
class _Line:
    """What has been said to one peer, and what it has said."""

    told: int
    """Updates that have left for it, or that it need not hear."""
    heard: int
    """Of these, those of which it has said that it has them."""
    taken: int = 0
    """The peer's own that have come, when it was last told."""
    kept: ChangeBatch = field(default_factory=ChangeBatch)
    ruled: Rulings = field(default_factory=Rulings)
    base: Frame | None = None
    """The newest base, where updates before it are kept."""


class ProgressBroadcast:
    """One member's side of what it and its peers tell each other."""

    def __init__(self, links: Links) -> None:
        self._links = links
        self._lines: dict[WorkerId, _Line] = {}
        self.sent = 0
        """How many have been made."""

    @property
    def peers(self) -> Sequence[WorkerId]:
        """Who is told."""
        return list(self._lines)

    @property
    def behind(self) -> bool:
        """Whether anything waits for a peer that lags."""
        return any(line.told < self.sent for line in self._lines.values())

    def meet(self, peer: WorkerId) -> None:
        """Tell a peer of what is made from now on."""
        self._lines[peer] = _Line(self.sent, self.sent)

    def part(self, peer: WorkerId) -> None:
        """Tell a peer nothing more."""
        del self._lines[peer]

    def tell(self, changes: Sequence[Change], rulings: Sequence[TimestampOverride] = ()) -> None:
        """One update for every peer."""
        self.sent += 1
        frame = encode_progress(changes, 1, rulings)
        for peer, line in self._lines.items():
            if line.told == self.sent - 1 and line.told - line.heard < WINDOW:
                line.told = self.sent
                self._links.send(peer, frame)
            else:
                for change in changes:
                    line.kept.add(*change)
                line.ruled.add(rulings)

    def tell_all(self, frame: Frame) -> None:
        """Something else for every peer, in order with the updates."""
        for peer, line in self._lines.items():
            self._release(peer, line)
            self._links.send(peer, frame)

    def tell_base(self, frame: Frame) -> None:
        """A base for every peer, behind the updates that it follows from."""
        for peer, line in self._lines.items():
            if line.told < self.sent:
                line.base = frame
            else:
                self._links.send(peer, frame)

    def taken(self, peer: WorkerId, updates: int) -> None:
        """So many of a peer's have come; now and then it is told so."""
        line = self._lines.get(peer)
        if line is not None and updates - line.taken >= max(1, WINDOW // 4):
            line.taken = updates
            self._links.send(peer, encode_heard(updates))

    def heard(self, peer: WorkerId, updates: int) -> None:
        """A peer has so many. Raises MeanderError if it was never sent as many."""
        line = self._lines.get(peer)
        if line is None:
            return
        if not line.heard <= updates <= line.told:
            raise MeanderError(member_name(peer), "it acknowledged updates that it was not sent")
        line.heard = updates
        if line.told - line.heard < WINDOW:
            self._release(peer, line)

    def _release(self, peer: WorkerId, line: _Line) -> None:
        if line.told < self.sent:
            kept, ruled = line.kept.take(), line.ruled.take()
            self._links.send(peer, encode_progress(kept, self.sent - line.told, ruled))
            line.told = self.sent
        if line.base is not None:
            self._links.send(peer, line.base)
            line.base = None
