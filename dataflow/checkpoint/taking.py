"""The coordinator's part in checkpoints: when one begins, and that it exists.

Guarantees that a checkpoint's record is written last, once each worker has said that its part is
durable, and that one is taken at a time, while nobody joins or leaves. Invariant: the word to
freeze goes by the links of progress, behind the news of who takes part. Cost: one frame per worker
and checkpoint.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from dataflow.migrate.command import Refused
from dataflow.migrate.said import Event
from dataflow.once.trimming import Trimming
from dataflow.plan import Plan
from dataflow.protocols import Clock, Links
from dataflow.wire import CompleteFrame, FreezeFrame, encode_cut
from schemas.errors import MeanderError
from state.antichain import Antichain
from state.checkpoint import BEGINNING, Checkpoint, Cut
from state.ids import Bin, Incarnation, WorkerId, member_name
from state.topic import Place

KEPT = 3
"""Checkpoints that are kept."""
Write = Callable[[Checkpoint], Callable[[], bool]]
"""Begins to write a checkpoint's record, returns whether it is durable yet."""


@dataclass(slots=True)
class _Taking:
    """One under way."""

    whole: Checkpoint
    """What the coordinator itself contributes."""
    id: str
    """The command's; '' where none asked for it."""
    began: float
    parts: dict[WorkerId, Checkpoint] = field(default_factory=dict)
    written: Callable[[], bool] | None = None
    """Whether its record is durable, once it is being written."""


class Checkpoints:
    """Those of one life of a flow."""

    def __init__(
        self,
        plan: Plan,
        incarnation: Incarnation,
        before: Checkpoint | None,
        links: Links,
        clock: Clock,
        write: Write,
        forget: Callable[[Sequence[Place]], None],
        trimming: Trimming,
    ) -> None:
        self.number = 0 if before is None else before.number
        """The last that was begun, in this life or before."""
        self._kept = deque([] if before is None else [before])
        """Those that are kept: the one with which this life has begun, and its own."""
        self._forget, self._trimming = forget, trimming
        self._plan, self._incarnation = plan, incarnation
        self._links, self._clock, self._write = links, clock, write
        self._taking: _Taking | None = None
        first = plan.flow.delivery == "exactly_once" and (before is None or before.cut == BEGINNING)
        self._asked: str | None = "" if first else None
        """The command for which one is to be begun, '' where none asks for it: before the first
        nothing leaves exactly once."""
        self._next = self._in_an_interval()

    def expect_none(self) -> None:
        """Raises Refused while one is being taken, or is to be."""
        if self.pending:
            raise Refused("a checkpoint is being taken: wait for its end")

    def ask(self, id: str) -> None:
        """A command asks for one; '' for nobody's."""
        self._asked = id

    def wanted(self, going_on: bool) -> bool:
        """Whether one is to be begun: it has been asked for, or it is time for another in a flow
        that takes them by itself and goes on."""
        if self._asked is None and self._is_time() and going_on:
            self._asked = ""
        return self._asked is not None

    @property
    def pending(self) -> bool:
        """Whether one is being taken, or has been asked for."""
        return self.under_way or self._asked is not None

    @property
    def under_way(self) -> bool:
        """Whether one is being taken."""
        return self._taking is not None

    def begin(self, cut: Cut, out: Iterable[Antichain]) -> None:
        """All members freeze, as is wanted; `cut` is what is known here, and what the frontiers
        `out` have passed has left the flow."""
        assert self._taking is None, "one at a time"
        assert self._asked is not None, "nobody wants one"
        id, self._asked = self._asked, None
        self.number += 1
        self._trimming.begins(self.number, out)
        now, space = self._clock.now_ms(), self._plan.flow.space
        whole = Checkpoint(self.number, self._incarnation, space, now, (), cut)
        self._taking = _Taking(whole, id, self._clock.monotonic())
        word = encode_cut(
            FreezeFrame(self.number, cut.members, tuple(one.number for one in self._kept))
        )
        for worker in cut.members:
            self._links.send(worker, word)

    def greet(self, worker: WorkerId) -> None:
        """A worker joins: it is told of the newest that there is to come back to."""
        if self._kept and self._kept[-1].cut != BEGINNING:
            self._links.send(worker, encode_cut(CompleteFrame(self._kept[-1].number)))

    def report(self, worker: WorkerId, data: bytes) -> None:
        """A worker's part is durable. Raises MeanderError for what is none."""
        part, taking = Checkpoint.from_bytes(data), self._taking
        if taking is None or part.number != taking.whole.number or worker in taking.parts:
            raise MeanderError(
                member_name(worker), f"it has written checkpoint {part.number}, which nobody takes"
            )
        taking.parts[worker] = part

    def step(self, time: int) -> list[Event]:
        """See how far it has come; what has happened. Nobody has come to a later `time`."""
        self._trimming.look(time)
        taking = self._taking
        if taking is None or len(taking.parts) < len(taking.whole.cut.members):
            return []
        if taking.written is None:
            whole = self._joined(taking)
            taking.whole, taking.written = whole, self._write(whole)
        if not taking.written():
            return []
        self._taking = None
        self._kept.append(taking.whole)
        for worker in taking.whole.cut.members:
            self._links.send(worker, encode_cut(CompleteFrame(taking.whole.number)))
        if len(self._kept) > KEPT:
            self._retire(self._kept.popleft())
        self._trimming.kept(self._kept[0].number)
        return [self._taken(taking)]

    def _is_time(self) -> bool:
        if self._next is None or self.under_way or self._clock.monotonic() < self._next:
            return False
        self._next = self._in_an_interval()
        return True

    def _in_an_interval(self) -> float | None:
        interval = self._plan.flow.checkpoint_interval
        return None if interval is None else self._clock.monotonic() + interval

    def _retire(self, old: Checkpoint) -> None:
        """What was in flight then and is in no other may go; layers are their writers'."""
        needed = {piece.place for one in self._kept for piece in one.cut.pieces}
        gone = {piece.place: None for piece in old.cut.pieces if piece.place not in needed}
        self._forget([*gone])

    def _joined(self, taking: _Taking) -> Checkpoint:
        members: Sequence[WorkerId] = taking.whole.cut.members
        whole = Checkpoint.joined(taking.whole, [taking.parts[worker] for worker in members])
        seen = set[tuple[str, Bin]]()
        for manifest in whole.manifests:
            place = manifest.operator, manifest.bin
            if place in seen:
                raise MeanderError(
                    f"checkpoint {whole.number}",
                    f"bin {manifest.bin} of operator {manifest.operator!r} is in it twice (I2)",
                )
            seen.add(place)
        return whole

    def _taken(self, taking: _Taking) -> Event:
        whole = taking.whole
        return {
            "type": "checkpointed",
            "id": taking.id,
            "number": whole.number,
            "ms": round((self._clock.monotonic() - taking.began) * 1000, 1),
            "state_bytes": whole.state_bytes,
            "in_flight_bytes": whole.in_flight_bytes,
            "in_flight": whole.in_flight,
        }
