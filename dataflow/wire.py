"""Frames between members: progress and data, as bytes that cannot run code.

A frame is a list of parts. Part 0 begins with its kind. Progress is msgpack; a batch is one part
of Arrow IPC for its columns and one of plain values (`state.encoding.codec`); pointers to state and
moves are plain values; news of members are msgpack. Cost: one encoding per remote message, none
for local ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Final, Literal, cast

import msgpack
import numpy as np
import pyarrow as pa

from meander.dataflow.control.bin_handoff import BinHandoff
from meander.dataflow.control.instructions import (
    CancelMove,
    Instruction,
    Prefetch,
    Revoke,
    Rewrite,
    StartPreCopy,
)
from meander.dataflow.control.partition_handoff import PartitionHandoff, ReassignPartition
from meander.dataflow.control.reassignment import Moves
from meander.dataflow.control.strict import count, whole
from meander.dataflow.control.timestamp_overrides import TimestampOverride
from meander.dataflow.graph.graph import EdgeId, Location
from meander.dataflow.interfaces import Frame, Partition
from meander.dataflow.records.batch import Batch
from meander.dataflow.records.columnar_encoding import StreamLayout
from meander.schemas.errors import MeanderError
from meander.state.encoding import codec
from meander.state.keys.ids import WorkerId, member_name
from meander.state.times.antichain import Antichain
from meander.state.times.time import Time

Whole = BinHandoff | Moves | Instruction | ReassignPartition | PartitionHandoff
Payload = Batch | Whole
Change = tuple[Location, Time, int]

MAX_FRAME: Final = 64 << 20
"""Bytes of the largest frame that a link takes."""
MESSAGE_BYTES: Final = 1 << 20
"""Bytes of a message of several records at most."""
COLUMN_BYTES: Final = 56
"""What a record takes in a message besides its value and its key."""
RECORD_BYTES: Final = MAX_FRAME - MESSAGE_BYTES
"""Bytes of a value and its key at most, so that a frame has room for them."""
PROGRESS, HEARD, MEMBERS, DATA, TAKEN, CUT = b"P", b"H", b"M", b"D", b"T", b"C"
_PLACE = [(name, pa.int64()) for name in ("time", "origin", "partition", "offset", "index")]
_PLAIN = StreamLayout(pa.schema(_PLACE))
_KEYED = StreamLayout(pa.schema([*_PLACE, ("key", pa.binary()), ("hash", pa.uint64())]))


News = Literal["welcome", "joins", "parts", "parted", "gone"]
"""To a newcomer, of a newcomer, to one who is to part, of one who has nothing left, of its end."""


@dataclass(frozen=True, slots=True)
class ProgressFrame:
    """One atomic update of a member, or several that have been added up."""

    changes: list[Change]
    updates: int = 1
    rulings: tuple[TimestampOverride, ...] = ()
    """What its sources have ruled, which these changes make effective."""


@dataclass(frozen=True, slots=True)
class HeardFrame:
    """So many updates of the receiver's have come to the sender."""

    updates: int


@dataclass(frozen=True, slots=True)
class Base:
    """A lower bound, at every location, of all that is still outstanding anywhere; the greater its
    number, the later. It follows from so many updates of each member as `cut` says."""

    number: int
    bounds: tuple[Antichain, ...]
    cut: tuple[tuple[WorkerId, int], ...] = ()

    def before(self, location: Location, time: Time) -> bool:
        """Whether nothing is outstanding any more at this location and time.

        >>> Base(1, (Antichain.of(5),)).before(Location(0), 4)
        True
        """
        return not self.bounds[location].less_equal(time)


@dataclass(frozen=True, slots=True)
class OpeningFrame:
    """To a newcomer: all that the sender has contributed so far and that is not before its base."""

    base: Base
    sent: int
    """In how many updates."""
    changes: list[Change]


@dataclass(frozen=True, slots=True)
class MemberFrame:
    """News of who takes part."""

    news: News
    members: tuple[WorkerId, ...] = ()
    """Of a welcome, all others; of an arrival or an end, the one."""
    time: int = 0
    """Of a parting, from when on nothing will be addressed to the one who parts."""
    checkpoint: int = 0
    """Of a welcome, the last that was begun."""


@dataclass(frozen=True, slots=True)
class DataFrame:
    """One message on one edge."""

    edge: EdgeId
    time: Time
    payload: Payload
    checkpoint: int = 0
    """The last for which its sender had frozen."""


@dataclass(frozen=True, slots=True)
class CheckpointFrame:
    """Word of a checkpoint, the n-th of its flow."""

    checkpoint: int


@dataclass(frozen=True, slots=True)
class PauseFrame(CheckpointFrame):
    """From the coordinator: a checkpoint is about to be taken, so sources send nothing later than
    `limit`, or than they have sent; it is waited for that so many bytes at most are in flight."""

    limit: int | None
    most: int


@dataclass(frozen=True, slots=True)
class CancelFrame(CheckpointFrame):
    """From the coordinator: a checkpoint is given up."""


@dataclass(frozen=True, slots=True)
class TriggerFrame(CheckpointFrame):
    """From the coordinator: all of these freeze for a checkpoint; of the earlier ones some are
    kept."""

    members: tuple[WorkerId, ...]
    kept: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class MarkerFrame(CheckpointFrame):
    """From a peer that has frozen for a checkpoint: how many messages it had sent before."""

    sent: int


@dataclass(frozen=True, slots=True)
class CompleteFrame(CheckpointFrame):
    """From the coordinator: a checkpoint exists."""

    passed: int = 0
    """All results of before have come to their sinks by then."""
    held: tuple[tuple[int, int], ...] = ()
    """Of those the outboxes do not have the results of these bins from these times on."""


@dataclass(frozen=True, slots=True)
class TakenFrame:
    """A peer gives back credit: its operator has taken so many bytes since it last said so."""

    edge: EdgeId
    size: int


ProgressUpdate = ProgressFrame | HeardFrame | Base | OpeningFrame | MemberFrame
Anything = ProgressUpdate | DataFrame | TakenFrame | CheckpointFrame


def encode_progress(
    changes: Sequence[Change], updates: int = 1, rulings: Sequence[TimestampOverride] = ()
) -> Frame:
    """A progress update as a frame; or so many, added up.

    >>> decode(encode_progress([(Location(3), (5, 1), -1)])).changes
    [(3, (5, 1), -1)]
    """
    return [PROGRESS + msgpack.packb((updates, changes, rulings))]


def encode_heard(updates: int) -> Frame:
    """How many updates have come, as a frame.

    >>> decode(encode_heard(256))
    HeardFrame(updates=256)
    """
    return [HEARD + msgpack.packb(updates)]


def encode_base(base: Base) -> Frame:
    """A base as a frame.

    >>> decode(encode_base(Base(1, (Antichain.of(5), Antichain()), ((WorkerId(0), 7),))))
    Base(number=1, bounds=(Antichain(times=(5,)), Antichain(times=())), cut=((0, 7),))
    """
    return [MEMBERS + msgpack.packb(("base", *_plain_base(base)))]


def encode_opening(base: Base, sent: int, changes: list[Change]) -> Frame:
    """An opening to a newcomer as a frame."""
    return [MEMBERS + msgpack.packb(("opening", *_plain_base(base), sent, changes))]


def encode_member(
    news: News, members: tuple[WorkerId, ...] = (), time: int = 0, checkpoint: int = 0
) -> Frame:
    """News of members as a frame.

    >>> decode(encode_member("joins", (WorkerId(3),)))
    MemberFrame(news='joins', members=(3,), time=0, checkpoint=0)
    """
    return [MEMBERS + msgpack.packb((news, members, time, checkpoint))]


def encode_cut(frame: CheckpointFrame) -> Frame:
    """Word of a checkpoint as a frame: it overtakes all messages.

    >>> decode(encode_cut(TriggerFrame(3, (WorkerId(0), WorkerId(2)), kept=(1, 2))))
    TriggerFrame(checkpoint=3, members=(0, 2), kept=(1, 2))
    """
    return [CUT + msgpack.packb((CUTS[type(frame)], *astuple(frame)))]


def check_size(peer: WorkerId, frame: Frame, most: int = MAX_FRAME) -> None:
    """Raises MeanderError for a frame that is longer than a link takes."""
    if (size := sum(map(len, frame))) > most:
        raise MeanderError(
            f"a frame for {member_name(peer)}",
            f"its {size:,} bytes are more than the bound of {most:,} bytes",
            "make the values of the flow smaller",
        )


def of_progress(frame: Frame) -> bool:
    """Whether it must stay in order with all others of its kind, and is never held back."""
    return frame[0][:1] in (PROGRESS, HEARD, MEMBERS, CUT)


def encode_data(edge: EdgeId, time: Time, payload: Payload, checkpoint: int = 0) -> Frame:
    """A message as a frame."""
    head = DATA + msgpack.packb((edge, time, type(payload).__name__, checkpoint))
    if isinstance(payload, Batch):
        return [head, *_encode_batch(payload)]
    return [head, payload.to_bytes()]


def encode_taken(edge: EdgeId, size: int) -> Frame:
    """Credit that is given back, as a frame.

    >>> decode(encode_taken(EdgeId(3), 4096))
    TakenFrame(edge=3, size=4096)
    """
    return [TAKEN + msgpack.packb((edge, size))]


def decode(frame: Frame) -> Anything:
    """The frame's meaning. Raises MeanderError for one that has none."""
    try:
        return _decode(frame)
    except MeanderError:
        raise
    except Exception as error:  # Arrow, Avro and msgpack raise what they like
        raise MeanderError("a frame of a peer", f"it cannot be read: {error}") from error


def _decode(frame: Frame) -> Anything:
    kind, body, parts = frame[0][:1], msgpack.unpackb(frame[0][1:], use_list=False), frame[1:]
    if kind == PROGRESS and not parts:
        updates, changes, rulings = body
        ruled = tuple(map(_ruling, _many(rulings))) if rulings else ()
        return ProgressFrame(_changes(changes), count(updates), ruled)
    if kind == HEARD and not parts:
        return HeardFrame(count(body))
    if kind == MEMBERS and not parts:
        return _decode_members(*body)
    if kind == DATA:
        edge, time, name, number = body
        payload = _decode_payload(name, parts)
        return DataFrame(EdgeId(count(edge)), _time(time), payload, count(number))
    if kind == TAKEN and not parts:
        edge, size = body
        return TakenFrame(EdgeId(count(edge)), count(size))
    if kind == CUT and not parts:
        return _decode_cut(*body)
    raise ValueError(f"{len(frame)} parts of kind {kind!r} mean nothing")


def _decode_members(news: object, *said: object) -> Base | OpeningFrame | MemberFrame:
    match news, said:
        case "base", [number, bounds, cut]:
            return _base(number, bounds, cut)
        case "opening", [number, bounds, cut, sent, changes]:
            return OpeningFrame(_base(number, bounds, cut), count(sent), _changes(changes))
        case ("welcome" | "joins" | "parts" | "parted" | "gone") as news, [
            members,
            time,
            number,
        ]:
            numbers = tuple(WorkerId(whole(member)) for member in _many(members))
            return MemberFrame(news, numbers, count(time), count(number))
    raise ValueError(f"{news!r} with {len(said)} parts is no news of members")


CUTS: Final[dict[type[CheckpointFrame], str]] = {
    PauseFrame: "hold", TriggerFrame: "freeze", MarkerFrame: "marker", CompleteFrame: "complete",
    CancelFrame: "cancel",
}  # fmt: skip


def _decode_cut(word: object, number: object, *said: object) -> CheckpointFrame:
    match word, said:
        case "hold", [limit, most]:
            until = None if limit is None else whole(limit)
            return PauseFrame(count(number), until, count(most))
        case "freeze", [members, kept]:
            named = tuple(WorkerId(count(member)) for member in _many(members))
            return TriggerFrame(count(number), named, tuple(map(count, _many(kept))))
        case "marker", [sent]:
            return MarkerFrame(count(number), count(sent))
        case "complete", [passed, held]:
            pairs = (map(count, _many(pair)) for pair in _many(held))
            bins = tuple((bin, time) for bin, time in pairs)
            return CompleteFrame(count(number), count(passed), bins)
        case "cancel", []:
            return CancelFrame(count(number))
    raise ValueError(f"{word!r} with {len(said)} parts is no word of a checkpoint")


def _plain_base(base: Base) -> tuple[object, ...]:
    return base.number, [bound.times for bound in base.bounds], base.cut


def _base(number: object, bounds: object, cut: object) -> Base:
    pairs = [_many(pair) for pair in _many(cut)]
    return Base(
        count(number),
        tuple(Antichain.of(*map(_time, _many(bound))) for bound in _many(bounds)),
        tuple((WorkerId(whole(member)), count(sent)) for member, sent in pairs),
    )


def _many(things: object) -> tuple[object, ...]:
    if isinstance(things, tuple):
        return things
    raise TypeError(f"{things!r} is not a list")


def _changes(changes: object) -> list[Change]:
    # Most frames are of these, so what is right is passed over as it is.
    known = cast(tuple[Change, ...], _many(changes))
    for change in known:
        location, time, delta = _many(change)
        if type(location) is not int or location < 0:
            raise TypeError(f"{location!r} numbers nothing")
        if type(time) is not int:
            _time(time)
        if type(delta) is not int:
            raise TypeError(f"{delta!r} is not a count")
    return list(known)


def _ruling(ruling: object) -> TimestampOverride:
    *numbers, last = _many(ruling)
    origin, partition, offset, time = map(count, numbers)
    until = None if last is None else count(last)
    return TimestampOverride(origin, Partition(partition), offset, time, until)


def _time(time: object) -> Time:
    if type(time) is int:
        return time
    if type(time) is tuple and len(time) > 1 and all(type(t) is int for t in time):
        return time
    raise TypeError(f"{time!r} is not a time")


def _decode_payload(name: str, parts: list[bytes]) -> Payload:
    match parts:
        case [columns, values] if name == "Batch":
            return _decode_batch(columns, values)
        case [data] if name in _WHOLE:
            return _WHOLE[name].from_bytes(data)
    raise ValueError(f"{len(parts)} parts of {name!r} are no payload")


_WHOLE: Mapping[str, type[Whole]] = {
    kind.__name__: kind
    for kind in (
        BinHandoff,
        Moves,
        StartPreCopy,
        Prefetch,
        CancelMove,
        Rewrite,
        Revoke,
        ReassignPartition,
        PartitionHandoff,
    )
}
"""The payloads that travel as one part."""


def _encode_batch(batch: Batch) -> list[bytes]:
    columns = [batch.times, batch.origins, batch.partitions, batch.offsets, batch.indexes]
    packed = codec.encode(batch.values) if batch.packed is None else batch.packed
    if batch.keys is None or batch.hashes is None:
        return [_PLAIN.write(columns), packed]
    return [_KEYED.write([*columns, batch.hashes], batch.keys), packed]


def _decode_batch(columns: bytes, packed: bytes) -> Batch:
    keyed = _KEYED.begins(columns)
    (times, origins, partitions, offsets, indexes, *hashes), keys = (
        _KEYED if keyed else _PLAIN
    ).read(columns)
    values = codec.decode_checked(packed)
    if type(values) is not list or len(values) != len(times):
        raise ValueError("values and columns differ in length")
    return Batch(
        times,
        origins,
        partitions,
        offsets,
        indexes,
        values,
        keys if keyed else None,
        hashes[0].view(np.uint64) if keyed else None,
        len(packed),
    )
