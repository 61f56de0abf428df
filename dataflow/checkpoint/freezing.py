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

from dataflow.graph import Location
from dataflow.protocols import Links
from dataflow.wire import CompleteFrame, CutFrame, FreezeFrame, MarkerFrame, Payload, encode_cut
from schemas.errors import MeanderError
from state.ids import COORDINATOR, WorkerId, member_name
from state.time import Time


class Contents(Protocol):
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


@dataclass(slots=True)
class _Recording:
    """A cut of which not all links have been recorded."""

    contents: Contents
    before: Counter[WorkerId]
    """How many messages had been sent to each peer."""
    members: tuple[WorkerId, ...] | None = None
    """Who takes part; None before the coordinator has said so."""


class Freezing:
    """Those of one worker, one at a time; `freeze` is given the number, `keep` which of the earlier
    ones are kept; `complete` is called once one exists."""

    def __init__(
        self, me: WorkerId, links: Links, freeze: Callable[[int], Contents],
        keep: Callable[[Sequence[int]], None], complete: Callable[[], None],
    ) -> None:  # fmt: skip
        self.number = 0
        """The last for which this worker has frozen."""
        self._me, self._links, self._freeze, self._keep = me, links, freeze, keep
        self._complete = complete
        self._sent, self._got = Counter[WorkerId](), Counter[WorkerId]()
        self._markers: dict[WorkerId, MarkerFrame] = {}
        """The newest of each peer."""
        self._recording: _Recording | None = None
        self._contents: Contents | None = None

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
        if number > self.number:
            self._begin(number)

    def takes(
        self, sender: WorkerId, number: int, at: Location, time: Time, payload: Payload
    ) -> None:
        """The same message is taken."""
        self._got[sender] += 1
        if self._recording is not None and number < self.number:
            self._recording.contents.record(at, time, payload)
            self._settle()

    def hear(self, sender: WorkerId, frame: CutFrame) -> None:
        """The coordinator's word, or a peer's. Raises MeanderError for one that may not say so."""
        match frame:
            case MarkerFrame():
                self._markers[sender] = frame
                self._settle()
            case CompleteFrame():
                self._complete()
            case FreezeFrame(number, members, kept):
                if sender != COORDINATOR or self._me not in members:
                    raise MeanderError(member_name(sender), "its word of a checkpoint is none")
                self.meets(number)
                self._keep(kept)
                self._mark(members)

    def step(self) -> bool:
        """Write a little of what has been frozen; whether anything was done."""
        return self._contents is not None and self._contents.step()

    def _begin(self, number: int) -> None:
        self.number = number
        self._contents = self._freeze(number)
        self._recording = _Recording(self._contents, self._sent.copy())

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
