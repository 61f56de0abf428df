"""A worker: one single-threaded loop over links, operators and progress (design 3).

A turn takes what the links brought, schedules every operator once, and flushes the turn's changes
of progress as one atomic update. Nothing in a turn blocks or takes long; what takes long is cut
into slices by the operators. Invariant: every message is in one place at any moment (a link or one
input), and every place is counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from dataflow.assembly import Assembly, Site
from dataflow.graph import Edge, EdgeId
from dataflow.operators.base import InputPort, Message
from dataflow.plan import Plan
from dataflow.progress import Progress
from dataflow.protocols import Frame, Links
from dataflow.unread import Unread
from dataflow.wire import (
    DataFrame,
    ProgressFrame,
    TakenFrame,
    decode,
    encode_data,
    encode_taken,
)
from schemas.errors import MeanderError
from state.antichain import Antichain
from state.ids import COORDINATOR, Bin, WorkerId

IDLE_SECONDS = 0.1
"""The longest nap of a worker that nothing wakes."""


def members_of(workers: int) -> Sequence[WorkerId]:
    """Who takes part in a computation: the workers and the coordinator."""
    return [*map(WorkerId, range(workers)), COORDINATOR]


class Worker:
    """One worker of one flow."""

    def __init__(self, plan: Plan, site: Site, links: Links) -> None:
        self.me = site.me
        self._plan, self._links, self._site = plan, links, site
        self._progress = Progress(plan.graph, site.me, members_of(site.workers), links)
        self._unread = Unread(plan.flow.max_waiting)
        self._reports: list[dict[str, object]] = []
        self._assembly = Assembly(plan, site, self._progress, self._deliver, self._reports.append)

    def step(self) -> bool:
        """One turn; whether anything was done."""
        received = self._receive()
        scheduled = [operator.schedule() for operator in self._assembly.operators]
        flushed = self._progress.flush()
        return received or flushed or any(scheduled)

    def wait_seconds(self) -> float:
        """How long there is nothing to do, unless a frame or a reader wakes the loop."""
        naps = [operator.wait_seconds() for operator in self._assembly.operators]
        return min((nap for nap in naps if nap is not None), default=IDLE_SECONDS)

    @property
    def done(self) -> bool:
        """Whether the whole computation is over and everything of this worker is outside."""
        return (
            self._progress.settled()
            and all(operator.finished() for operator in self._assembly.operators)
            and self._site.dead.pending() == 0
        )

    def reports(self) -> list[dict[str, object]]:
        """Events for the coordinator since the last call, JSON-able."""
        taken = self._reports[:]
        self._reports.clear()
        return taken

    @property
    def counters(self) -> Counter[str]:
        """Records read, unreadable, written, bumps, future, dead_letters, skipped, since the start;
        and moves of partitions on demand."""
        return self._assembly.counters

    @property
    def inflight(self) -> int:
        """Bytes read that the sinks have not passed."""
        return self._assembly.inflight.bytes

    def frontiers(self) -> dict[str, Antichain]:
        """The frontier at every probe and sink, by name."""
        return {name: self._progress.frontier(at) for name, at in self._plan.probes.items()}

    def state(self) -> dict[str, dict[bytes, bytes]]:
        """All keyed state on this worker, encoded: {operator: {key: state}}."""
        stores = {outlet.keyed.name: outlet.keyed.store for outlet in self._assembly.outlets}
        return {
            name: {key: value for bin in store.bins() for key, value in store.scan(Bin(bin))}
            for name, store in stores.items()
        }

    def close(self) -> None:
        """Close what the operators hold open."""
        self._assembly.close()

    def take(self, sender: WorkerId, frame: Frame) -> None:
        """Act on one frame of a peer. Raises MeanderError for one that cannot be read."""
        match decode(frame):
            case ProgressFrame(changes):
                self._progress.receive(sender, changes)
            case TakenFrame(size):
                self._unread.acknowledged(sender, size)
            case DataFrame(edge, time, payload):
                self._unread.took(sender, _size(frame))
                port = self._port(sender, edge)
                if not port.frontier.less_equal(time):
                    raise MeanderError(
                        f"worker {self.me}",
                        f"worker {sender} sent a message of time {time} behind the frontier (I1)",
                    )
                port.put(Message(time, payload))

    def _port(self, sender: WorkerId, edge: EdgeId) -> InputPort:
        edges = self._plan.graph.edges
        if edge >= len(edges):
            raise MeanderError(
                f"worker {sender}",
                f"it sent a message on edge {edge} of a flow that has {len(edges)}",
                "run every worker with the same flow",
            )
        return self._assembly.inputs[edges[edge].target]

    def _receive(self) -> bool:
        received = False
        for sender, frame in self._links.receive():
            self.take(sender, frame)
            received = True
        for peer, size in self._unread.owed():
            self._links.send(peer, encode_taken(size))
        return received

    def _deliver(self, edge: Edge, to: WorkerId, message: Message) -> None:
        if to == self.me:
            self._assembly.inputs[edge.target].put(message)
        else:
            frame = encode_data(edge.id, message.time, message.payload)
            self._unread.sent(to, _size(frame))
            self._links.send(to, frame)


def _size(frame: Frame) -> int:
    return sum(map(len, frame))
