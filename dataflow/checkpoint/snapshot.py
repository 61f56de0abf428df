"""Snapshots of one worker at a cut, after Chandy and Lamport, of whole workers (design 5, FLIP-76).

A trigger or the number in a message starts the snapshot: the worker freezes all operators and
queues between two steps. So no worker receives a message from after its sender's freeze before its
own freeze. Then the worker records of each link the messages from before the cut; markers overtake
messages and state their number. Guarantees that every record is in one place of the cut: in the log
of its source, in flight, or in a state. Cost: a reference to each held batch, and a copy of values
that user functions could change in place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from meander.dataflow.checkpoint.alignment import Alignment
from meander.dataflow.graph.graph import Location
from meander.dataflow.interfaces import Clock, Links
from meander.dataflow.wire import (
    CancelFrame,
    CheckpointFrame,
    CompleteFrame,
    MarkerFrame,
    PauseFrame,
    Payload,
    TriggerFrame,
    encode_checkpoint,
)
from meander.schemas.errors import MeanderError
from meander.state.keys.ids import COORDINATOR, WorkerId, member_name
from meander.state.times.time import Time

SHARE = 4
"""The time of a turn for writing a checkpoint, as a multiple of the time for all else."""


LONGEST = 0.05
"""The most seconds that a turn writes."""


class PendingSnapshot(Protocol):
    """A frozen worker's part that is being written."""

    def record(self, at: Location, time: Time, payload: Payload) -> None:
        """Add a message that was on its way."""

    def complete(self) -> None:
        """End the recording of messages."""

    def step(self) -> bool:
        """Write a slice; return whether anything was done."""

    @property
    def done(self) -> bool:
        """Whether all is written."""

    def cancel(self) -> None:
        """Give up the snapshot."""


@dataclass(slots=True)
class _Recording:
    """A cut whose links are not all recorded."""

    contents: PendingSnapshot
    sent: Counter[WorkerId]
    """The number of messages sent to each peer before the cut."""
    members: tuple[WorkerId, ...] | None = None
    """The members of the cut; None before the trigger."""


class SnapshotHandler:
    """A handler of the snapshots of one worker, one at a time.

    `freeze` starts snapshot n; `retain` receives the numbers of the retained checkpoints.
    `complete` and `cancelled` are called when a checkpoint exists or is cancelled.
    """

    def __init__(
        self, me: WorkerId, links: Links, alignment: Alignment,
        freeze: Callable[[int], PendingSnapshot],
        retain: Callable[[Sequence[int]], None], complete: Callable[[CompleteFrame], None],
        cancelled: Callable[[int], None], clock: Clock,
    ) -> None:  # fmt: skip
        self.number = 0
        """The last checkpoint for which this worker has frozen."""
        self._me, self._links, self._freeze, self._retain = me, links, freeze, retain
        self._complete, self._cancelled, self._alignment = complete, cancelled, alignment
        self._clock = clock
        self._sent, self._received = Counter[WorkerId](), Counter[WorkerId]()
        self._markers: dict[WorkerId, MarkerFrame] = {}
        """The newest marker of each peer."""
        self._recording: _Recording | None = None
        self._contents: PendingSnapshot | None = None
        self._unanswered: dict[int, PendingSnapshot] = {}
        """The snapshots of checkpoints that are neither complete nor cancelled."""

    @property
    def busy(self) -> bool:
        """Whether a snapshot is not written."""
        return self._contents is not None and not self._contents.done

    def welcome(self, number: int) -> None:
        """Note the number of the last checkpoint when this worker joins."""
        self.number = max(self.number, number)

    def note_sent(self, peer: WorkerId) -> int:
        """Count a message to a peer; return the checkpoint number that it carries."""
        self._sent[peer] += 1
        return self.number

    def reach(self, number: int) -> None:
        """Freeze, unless this worker has frozen for this checkpoint."""
        self._freeze_once(number)

    def note_received(
        self, sender: WorkerId, number: int, at: Location, time: Time, payload: Payload
    ) -> None:
        """Count a received message, and record it where it was sent before the cut."""
        self._received[sender] += 1
        if self._recording is not None and number < self.number:
            self._recording.contents.record(at, time, payload)
            self._complete_recording()

    def receive(self, sender: WorkerId, frame: CheckpointFrame) -> None:
        """Handle a frame of the coordinator or a peer. Raise `MeanderError` where the sender may
        not send it."""
        match frame:
            case PauseFrame():
                self._alignment.receive(frame)
            case CancelFrame(number):
                self._alignment.release()
                self._cancel(number)
            case MarkerFrame():
                self._markers[sender] = frame
                self._complete_recording()
            case CompleteFrame():
                self._unanswered.pop(frame.checkpoint, None)
                self._complete(frame)
            case TriggerFrame(number, members, retained):
                if sender != COORDINATOR or self._me not in members:
                    raise MeanderError(member_name(sender), "it sent an invalid checkpoint trigger")
                self._freeze_once(number)
                self._retain(retained)
                self._send_markers(members)

    def step(self, seconds: float) -> bool:
        """Write a slice of the frozen contents; return whether anything was done.

        It continues for `SHARE` times the seconds of the operators' last turn: slow functions would
        delay it otherwise.
        """
        self._alignment.step()
        if self._contents is None:
            return False
        until = self._clock.monotonic() + min(SHARE * seconds, LONGEST)
        worked = more = self._contents.step()
        while more and self._clock.monotonic() < until:
            more = self._contents.step()
        return worked

    def _freeze_once(self, number: int) -> None:
        """Freeze, unless that has been done."""
        if number > self.number:
            self._start(number)

    def _start(self, number: int) -> None:
        self.number = number
        self._alignment.release()
        for earlier in self._unanswered.values():
            # This checkpoint has been cancelled, and the frame about it is still on its way.
            if not earlier.done:
                earlier.cancel()
        self._contents = self._unanswered[number] = self._freeze(number)
        self._recording = _Recording(self._contents, self._sent.copy())

    def _cancel(self, number: int) -> None:
        """Cancel a checkpoint for which this worker may have frozen."""
        if (contents := self._unanswered.pop(number, None)) is not None:
            contents.cancel()
        self._cancelled(number)
        if number == self.number:
            self._contents = self._recording = None

    def _send_markers(self, members: tuple[WorkerId, ...]) -> None:
        """Send each peer the number of messages sent to it before the cut."""
        recording = self._recording
        if recording is None:
            return
        recording.members = members
        for peer in members:
            if peer != self._me:
                marker = MarkerFrame(self.number, recording.sent[peer])
                self._links.send(peer, encode_checkpoint(marker))
        # The peers wait for the markers, and writing takes the rest of the turn.
        self._links.flush()
        self._complete_recording()

    def _complete_recording(self) -> None:
        """End the recording once all messages from before the cut have come."""
        recording = self._recording
        if recording is None or recording.members is None:
            return
        for peer in recording.members:
            marker = self._markers.get(peer)
            if peer == self._me:
                continue
            if (
                marker is None
                or marker.checkpoint != self.number
                or self._received[peer] < marker.sent
            ):
                return
        recording.contents.complete()
        self._recording = None
