"""The wire format: frames between members as bytes that cannot run code.

A frame is a list of parts, and part 0 begins with its kind. Progress and membership are msgpack. A
batch has one part of Arrow IPC for its columns and one of plain values (`state.encoding.codec`).
Bin handoffs and moves are plain values. Cost: one encoding per remote message, none for local ones.
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
"""The most bytes of a frame that a link takes."""
MESSAGE_BYTES: Final = 1 << 20
"""The most bytes of a message of several records."""
COLUMN_BYTES: Final = 56
"""The bytes of a record in a message besides its value and its key."""
RECORD_BYTES: Final = MAX_FRAME - MESSAGE_BYTES
"""The most bytes of a value and its key, so that a frame has room for them."""
PROGRESS, HEARD, MEMBERS, DATA, TAKEN, CUT = b"P", b"H", b"M", b"D", b"T", b"C"
_PLACE = [(name, pa.int64()) for name in ("time", "origin", "partition", "offset", "index")]
_PLAIN = StreamLayout(pa.schema(_PLACE))
_KEYED = StreamLayout(pa.schema([*_PLACE, ("key", pa.binary()), ("hash", pa.uint64())]))


News = Literal["welcome", "joins", "parts", "parted", "gone"]
"""The kinds of member frames. They welcome a joining worker, announce one, ask a worker to leave,
report that it has left, and confirm its end."""


@dataclass(frozen=True, slots=True)
class ProgressFrame:
    """A frame that carries one atomic progress update of a member, or the sum of several."""

    changes: list[Change]
    updates: int = 1
    rulings: tuple[TimestampOverride, ...] = ()
    """The timestamp overrides of its sources that these changes make effective."""


@dataclass(frozen=True, slots=True)
class HeardFrame:
    """A frame that tells how many updates of the receiver have reached the sender."""

    updates: int


@dataclass(frozen=True, slots=True)
class Base:
    """A progress base that bounds all outstanding pointstamps from below at every location. A later
    base has a greater number. `cut` gives the number of updates of each member that it follows
    from."""

    number: int
    bounds: tuple[Antichain, ...]
    cut: tuple[tuple[WorkerId, int], ...] = ()

    def before(self, location: Location, time: Time) -> bool:
        """Return whether no pointstamp is outstanding any more at this location and time.

        >>> Base(1, (Antichain.of(5),)).before(Location(0), 4)
        True
        """
        return not self.bounds[location].less_equal(time)


@dataclass(frozen=True, slots=True)
class OpeningFrame:
    """A frame that gives a joining worker all contributions of the sender that are not before its
    base."""

    base: Base
    sent: int
    """The number of updates that hold them."""
    changes: list[Change]


@dataclass(frozen=True, slots=True)
class MemberFrame:
    """A frame that reports a change of the membership."""

    news: News
    members: tuple[WorkerId, ...] = ()
    """All other members in a welcome, else the one member that joins or ends."""
    time: int = 0
    """The time from which no message is addressed to the leaving worker."""
    checkpoint: int = 0
    """The last checkpoint that was started, in a welcome."""


@dataclass(frozen=True, slots=True)
class DataFrame:
    """A frame that carries one message on one edge."""

    edge: EdgeId
    time: Time
    payload: Payload
    checkpoint: int = 0
    """The last checkpoint for which its sender had frozen."""


@dataclass(frozen=True, slots=True)
class CheckpointFrame:
    """A frame that concerns the n-th checkpoint of its flow."""

    checkpoint: int


@dataclass(frozen=True, slots=True)
class PauseFrame(CheckpointFrame):
    """A frame that lets the coordinator pause the sources before a checkpoint. They send no record
    later than `limit`, or than the records they have sent. The checkpoint waits until at most
    `most` bytes are in flight."""

    limit: int | None
    most: int


@dataclass(frozen=True, slots=True)
class CancelFrame(CheckpointFrame):
    """A frame that lets the coordinator cancel a checkpoint."""


@dataclass(frozen=True, slots=True)
class TriggerFrame(CheckpointFrame):
    """A frame that lets the coordinator freeze all named members for a checkpoint. `kept` names the
    retained checkpoints."""

    members: tuple[WorkerId, ...]
    kept: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class MarkerFrame(CheckpointFrame):
    """A frame that a frozen peer tells the number of messages before its cut with."""

    sent: int


@dataclass(frozen=True, slots=True)
class CompleteFrame(CheckpointFrame):
    """A frame that lets the coordinator announce a complete checkpoint."""

    passed: int = 0
    """The time up to which all earlier results have reached their sinks."""
    held: tuple[tuple[int, int], ...] = ()
    """Bins and times: the outboxes lack the results of each bin from its time on."""


@dataclass(frozen=True, slots=True)
class TakenFrame:
    """A frame that returns credit: the operator of a peer has taken these bytes since its last
    return."""

    edge: EdgeId
    size: int


ProgressUpdate = ProgressFrame | HeardFrame | Base | OpeningFrame | MemberFrame
Anything = ProgressUpdate | DataFrame | TakenFrame | CheckpointFrame


def encode_progress(
    changes: Sequence[Change], updates: int = 1, rulings: Sequence[TimestampOverride] = ()
) -> Frame:
    """Encode a progress update, or the sum of several, as a frame.

    >>> decode(encode_progress([(Location(3), (5, 1), -1)])).changes
    [(3, (5, 1), -1)]
    """
    return [PROGRESS + msgpack.packb((updates, changes, rulings))]


def encode_heard(updates: int) -> Frame:
    """Encode the number of received updates as a frame.

    >>> decode(encode_heard(256))
    HeardFrame(updates=256)
    """
    return [HEARD + msgpack.packb(updates)]


def encode_base(base: Base) -> Frame:
    """Encode a base as a frame.

    >>> decode(encode_base(Base(1, (Antichain.of(5), Antichain()), ((WorkerId(0), 7),))))
    Base(number=1, bounds=(Antichain(times=(5,)), Antichain(times=())), cut=((0, 7),))
    """
    return [MEMBERS + msgpack.packb(("base", *_plain_base(base)))]


def encode_opening(base: Base, sent: int, changes: list[Change]) -> Frame:
    """Encode the opening for a joining worker as a frame."""
    return [MEMBERS + msgpack.packb(("opening", *_plain_base(base), sent, changes))]


def encode_member(
    news: News, members: tuple[WorkerId, ...] = (), time: int = 0, checkpoint: int = 0
) -> Frame:
    """Encode a change of the membership as a frame.

    >>> decode(encode_member("joins", (WorkerId(3),)))
    MemberFrame(news='joins', members=(3,), time=0, checkpoint=0)
    """
    return [MEMBERS + msgpack.packb((news, members, time, checkpoint))]


def encode_cut(frame: CheckpointFrame) -> Frame:
    """Encode a checkpoint frame. It overtakes all messages.

    >>> decode(encode_cut(TriggerFrame(3, (WorkerId(0), WorkerId(2)), kept=(1, 2))))
    TriggerFrame(checkpoint=3, members=(0, 2), kept=(1, 2))
    """
    return [CUT + msgpack.packb((CUTS[type(frame)], *astuple(frame)))]


def check_size(peer: WorkerId, frame: Frame, most: int = MAX_FRAME) -> None:
    """Raise MeanderError for a frame that is longer than a link takes."""
    if (size := sum(map(len, frame))) > most:
        raise MeanderError(
            f"a frame for {member_name(peer)}",
            f"its {size:,} bytes are more than the bound of {most:,} bytes",
            "make the values of the flow smaller",
        )


def of_progress(frame: Frame) -> bool:
    """Return whether a frame stays in order with all others of its kind, and needs no credit."""
    return frame[0][:1] in (PROGRESS, HEARD, MEMBERS, CUT)


def encode_data(edge: EdgeId, time: Time, payload: Payload, checkpoint: int = 0) -> Frame:
    """Encode a message as a frame."""
    head = DATA + msgpack.packb((edge, time, type(payload).__name__, checkpoint))
    if isinstance(payload, Batch):
        return [head, *_encode_batch(payload)]
    return [head, payload.to_bytes()]


def encode_taken(edge: EdgeId, size: int) -> Frame:
    """Encode returned credit as a frame.

    >>> decode(encode_taken(EdgeId(3), 4096))
    TakenFrame(edge=3, size=4096)
    """
    return [TAKEN + msgpack.packb((edge, size))]


def decode(frame: Frame) -> Anything:
    """Decode a frame. Raises MeanderError for a malformed frame."""
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
    # Most frames hold changes, so valid changes are not copied.
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
    values = codec.decode_strict(packed)
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
