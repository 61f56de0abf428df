"""The progress broadcast: a member's updates on their way to its peers, merged for slow peers.

Guarantees that each peer receives all changes in order, and that at most `WINDOW` updates wait for
a slow peer (I6). Later changes add up in one pending update, which leaves once the peer has
acknowledged enough of the others. Its timestamp overrides are at most as many as records in flight.
Merging consecutive updates is safe: no conclusion follows from a part of them that does not follow
from all. Invariant: updates are counted as they were made, so the cut of a progress base means the
same to all peers. Cost: one encoding per update and window, one acknowledgement per quarter of a
window.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from meander.dataflow.control.timestamp_overrides import PendingOverrides, TimestampOverride
from meander.dataflow.interfaces import Frame, Links
from meander.dataflow.progress.change_batch import ChangeBatch
from meander.dataflow.wire import Change, encode_progress, encode_progress_ack
from meander.schemas.errors import MeanderError
from meander.state.keys.ids import WorkerId, member_name

WINDOW = 1024
"""The most updates on their way to a peer."""


@dataclass(slots=True)
class _PeerQueue:
    """A record of the updates sent to one peer and acknowledged by it."""

    sent: int
    """The number of updates sent to it, or made before it became a peer."""
    acknowledged: int
    """The number of these that it has acknowledged."""
    reported: int = 0
    """The number of the peer's own updates in the last acknowledgement to it."""
    pending: ChangeBatch = field(default_factory=ChangeBatch)
    overrides: PendingOverrides = field(default_factory=PendingOverrides)
    base: Frame | None = None
    """The newest base, while earlier updates are pending."""


class ProgressBroadcast:
    """A broadcast of one member's updates, and of its acknowledgements."""

    def __init__(self, links: Links) -> None:
        self._links = links
        self._queues: dict[WorkerId, _PeerQueue] = {}
        self.sent = 0
        """The number of updates made so far."""

    @property
    def peers(self) -> Sequence[WorkerId]:
        """The members that receive the updates."""
        return list(self._queues)

    @property
    def behind(self) -> bool:
        """Whether any update is pending for a slow peer."""
        return any(queue.sent < self.sent for queue in self._queues.values())

    def add_peer(self, peer: WorkerId) -> None:
        """Send a peer all updates made from now on."""
        self._queues[peer] = _PeerQueue(self.sent, self.sent)

    def remove_peer(self, peer: WorkerId) -> None:
        """Send a peer nothing more."""
        del self._queues[peer]

    def send_update(
        self, changes: Sequence[Change], overrides: Sequence[TimestampOverride] = ()
    ) -> None:
        """Send one update to every peer."""
        self.sent += 1
        frame = encode_progress(changes, 1, overrides)
        for peer, queue in self._queues.items():
            if queue.sent == self.sent - 1 and queue.sent - queue.acknowledged < WINDOW:
                queue.sent = self.sent
                self._links.send(peer, frame)
            else:
                for change in changes:
                    queue.pending.add(*change)
                queue.overrides.add(overrides)

    def send_frame(self, frame: Frame) -> None:
        """Send another frame to every peer, in order with the updates."""
        for peer, queue in self._queues.items():
            self._release(peer, queue)
            self._links.send(peer, frame)

    def send_base(self, frame: Frame) -> None:
        """Send a base to every peer, after the updates from which it follows."""
        for peer, queue in self._queues.items():
            if queue.sent < self.sent:
                queue.base = frame
            else:
                self._links.send(peer, frame)

    def note_received(self, peer: WorkerId, updates: int) -> None:
        """Note how many updates of a peer have arrived, and acknowledge them now and then."""
        queue = self._queues.get(peer)
        if queue is not None and updates - queue.reported >= max(1, WINDOW // 4):
            queue.reported = updates
            self._links.send(peer, encode_progress_ack(updates))

    def note_acknowledged(self, peer: WorkerId, updates: int) -> None:
        """Handle an acknowledgement of a peer. Raise `MeanderError` for more updates than were
        sent."""
        queue = self._queues.get(peer)
        if queue is None:
            return
        if not queue.acknowledged <= updates <= queue.sent:
            raise MeanderError(member_name(peer), "it acknowledged updates that it was not sent")
        queue.acknowledged = updates
        if queue.sent - queue.acknowledged < WINDOW:
            self._release(peer, queue)

    def _release(self, peer: WorkerId, queue: _PeerQueue) -> None:
        if queue.sent < self.sent:
            changes, overrides = queue.pending.drain(), queue.overrides.drain()
            self._links.send(peer, encode_progress(changes, self.sent - queue.sent, overrides))
            queue.sent = self.sent
        if queue.base is not None:
            self._links.send(peer, queue.base)
            queue.base = None
