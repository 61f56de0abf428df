"""One worker's part in a cut: Chandy and Lamport's snapshot, of whole workers (design 5, FLIP-76).

On the first word of a checkpoint, the coordinator's or the number in a message, a worker freezes
all operators and queues at once, between two steps; so nobody takes a message that was sent after
its sender's freeze before its own. Then it records of each link what was sent before that: markers
overtake messages and say how many. Guarantees that every record is in one place of the cut: in its
source's log, in flight, or in a state. Cost: a reference to each batch that is held, and a copy of
its values where users' functions could change them in place.
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
    encode_cut,
)
from meander.schemas.errors import MeanderError
from meander.state.keys.ids import COORDINATOR, WorkerId, member_name
from meander.state.times.time import Time

SHARE = 4
"""How much longer a turn writes than it does all else, while a checkpoint is being taken."""


LONGEST = 0.05
"""Seconds that a turn writes at most."""


class PendingSnapshot(Protocol):
    """What has been frozen, and is being written."""

    def record(self, at: Location, time: Time, payload: Payload) -> None:
        """A message was on its way."""

    def complete(self) -> None:
        """Nothing more was."""

    def step(self) -> bool:
        """Write a little; whether anything was done."""

    @property
    def done(self) -> bool:
        """Whether all is written."""

    def cancel(self) -> None:
        """It is given up."""


@dataclass(slots=True)
class _Recording:
    """A cut of which not all links have been recorded."""

    contents: PendingSnapshot
    before: Counter[WorkerId]
    """How many messages had been sent to each peer."""
    members: tuple[WorkerId, ...] | None = None
    """Who takes part; None before the coordinator has said so."""


class SnapshotHandler:
    """Those of one worker, one at a time; `freeze` is given the number, `keep` which of the earlier
    ones are kept; `complete` is called once one exists, `cancelled` once one is given up."""

    def __init__(
        self, me: WorkerId, links: Links, settling: Alignment,
        freeze: Callable[[int], PendingSnapshot],
        keep: Callable[[Sequence[int]], None], complete: Callable[[CompleteFrame], None],
        cancelled: Callable[[int], None], clock: Clock,
    ) -> None:  # fmt: skip
        self.number = 0
        """The last for which this worker has frozen."""
        self._me, self._links, self._freeze, self._keep = me, links, freeze, keep
        self._complete, self._cancelled, self._settling = complete, cancelled, settling
        self._clock = clock
        self._sent, self._got = Counter[WorkerId](), Counter[WorkerId]()
        self._markers: dict[WorkerId, MarkerFrame] = {}
        """The newest of each peer."""
        self._recording: _Recording | None = None
        self._contents: PendingSnapshot | None = None
        self._unanswered: dict[int, PendingSnapshot] = {}
        """Of checkpoints of which it has not been heard that they exist, or have been given up."""

    @property
    def busy(self) -> bool:
        """Whether something frozen has not been written."""
        return self._contents is not None and not self._contents.done

    def welcome(self, number: int) -> None:
        """This worker joins a flow of which so many have been begun."""
        self.number = max(self.number, number)

    def sends(self, peer: WorkerId) -> int:
        """A message is about to leave: the number that it is to carry."""
        self._sent[peer] += 1
        return self.number

    def meets(self, number: int) -> None:
        """A message has come of a sender that had frozen for so many."""
        self._reach(number)

    def takes(
        self, sender: WorkerId, number: int, at: Location, time: Time, payload: Payload
    ) -> None:
        """The same message is taken."""
        self._got[sender] += 1
        if self._recording is not None and number < self.number:
            self._recording.contents.record(at, time, payload)
            self._settle()

    def hear(self, sender: WorkerId, frame: CheckpointFrame) -> None:
        """The coordinator's word, or a peer's. Raises MeanderError for one that may not say so."""
        match frame:
            case PauseFrame():
                self._settling.hear(frame)
            case CancelFrame(number):
                self._settling.release()
                self._cancel(number)
            case MarkerFrame():
                self._markers[sender] = frame
                self._settle()
            case CompleteFrame():
                self._unanswered.pop(frame.checkpoint, None)
                self._complete(frame)
            case TriggerFrame(number, members, kept):
                if sender != COORDINATOR or self._me not in members:
                    raise MeanderError(member_name(sender), "its word of a checkpoint is none")
                self._reach(number)
                self._keep(kept)
                self._mark(members)

    def step(self, seconds: float) -> bool:
        """Write a little of what has been frozen; where the operators took so many seconds of the
        last turn, go on for `SHARE` times as long: else slow functions would delay it. Whether
        anything was done."""
        self._settling.step()
        if self._contents is None:
            return False
        until = self._clock.monotonic() + min(SHARE * seconds, LONGEST)
        worked = goes_on = self._contents.step()
        while goes_on and self._clock.monotonic() < until:
            goes_on = self._contents.step()
        return worked

    def _reach(self, number: int) -> None:
        """Freeze, unless that has been done."""
        if number > self.number:
            self._begin(number)

    def _begin(self, number: int) -> None:
        self.number = number
        self._settling.release()
        for earlier in self._unanswered.values():
            # It has been given up, and that word is still on its way.
            if not earlier.done:
                earlier.cancel()
        self._contents = self._unanswered[number] = self._freeze(number)
        self._recording = _Recording(self._contents, self._sent.copy())

    def _cancel(self, number: int) -> None:
        """One is given up for which this worker may have frozen."""
        if (contents := self._unanswered.pop(number, None)) is not None:
            contents.cancel()
        self._cancelled(number)
        if number == self.number:
            self._contents = self._recording = None

    def _mark(self, members: tuple[WorkerId, ...]) -> None:
        """Tell the peers what had been sent to them before."""
        recording = self._recording
        if recording is None:
            return
        recording.members = members
        for peer in members:
            if peer != self._me:
                marker = MarkerFrame(self.number, recording.before[peer])
                self._links.send(peer, encode_cut(marker))
        # The peers wait for it, and what this turn writes takes a while.
        self._links.flush()
        self._settle()

    def _settle(self) -> None:
        """See whether all that was sent before has come."""
        recording = self._recording
        if recording is None or recording.members is None:
            return
        for peer in recording.members:
            marker = self._markers.get(peer)
            if peer == self._me:
                continue
            if marker is None or marker.checkpoint != self.number or self._got[peer] < marker.sent:
                return
        recording.contents.complete()
        self._recording = None
