"""The wire format: frames between members as bytes that cannot run code.

A frame is a list of parts, and part 0 begins with its kind. Progress and membership are msgpack. A
batch has one part of Arrow IPC for its columns, one of its values (`records.packing`), and a third
of its extra columns where it has any.
Bin handoffs and moves are plain values. Cost: one encoding per remote message.
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
from meander.dataflow.control.logic_change import LogicChange, PrepareLogic
from meander.dataflow.control.partition_handoff import PartitionHandoff, ReassignPartition
from meander.dataflow.control.reassignment import Moves
from meander.dataflow.control.strict_decoding import expect_count, expect_int
from meander.dataflow.control.timestamp_overrides import TimestampOverride
from meander.dataflow.graph.graph import EdgeId, Location
from meander.dataflow.interfaces import Frame, Partition
from meander.dataflow.records import extra_columns
from meander.dataflow.records.batch import Batch
from meander.dataflow.records.columnar_encoding import StreamLayout
from meander.dataflow.records.packing import decode_values, encode_values
from meander.schemas.errors import MeanderError
from meander.state.keys.ids import WorkerId, member_name
from meander.state.times.antichain import Antichain
from meander.state.times.time import Time

ControlPayload = (
    BinHandoff | Moves | LogicChange | Instruction | ReassignPartition | PartitionHandoff
)
Payload = Batch | ControlPayload
Change = tuple[Location, Time, int]

MAX_FRAME: Final = 64 << 20
"""The most bytes of a frame that a link takes."""
MESSAGE_BYTES: Final = 1 << 20
"""The most bytes of a message of several records."""
COLUMN_BYTES: Final = 56
"""The bytes of a record in a message besides its value and its key."""
RECORD_BYTES: Final = MAX_FRAME - MESSAGE_BYTES
"""The most bytes of a value and its key, so that a frame has room for them."""
PROGRESS, PROGRESS_ACK, MEMBERS, DATA, CREDIT, CHECKPOINT = b"P", b"H", b"M", b"D", b"T", b"C"
_COLUMNS = [(name, pa.int64()) for name in ("time", "origin", "partition", "offset", "index")]
_KEYLESS = StreamLayout(pa.schema(_COLUMNS))
_KEYED = StreamLayout(pa.schema([*_COLUMNS, ("key", pa.binary()), ("hash", pa.uint64())]))


News = Literal["welcome", "joins", "leave", "leaves", "left"]
"""The kinds of member frames. They welcome a joining worker, announce it, ask a worker to leave,
report that it can leave, and announce that it has left."""


@dataclass(frozen=True, slots=True)
class ProgressFrame:
    """A frame that carries one atomic progress update of a member, or the sum of several."""

    changes: list[Change]
    updates: int = 1
    overrides: tuple[TimestampOverride, ...] = ()
    """The timestamp overrides of its sources that these changes make effective."""


@dataclass(frozen=True, slots=True)
class ProgressAckFrame:
    """A frame that acknowledges a number of updates of the receiver."""

    updates: int


@dataclass(frozen=True, slots=True)
class Base:
    """A progress base that bounds all outstanding pointstamps from below at every location.

    A later base has a greater number. `cut` holds the number of updates of each member from which
    the base follows.
    """

    number: int
    bounds: tuple[Antichain, ...]
    cut: tuple[tuple[WorkerId, int], ...] = ()

    def before(self, location: Location, time: Time) -> bool:
        """Return whether no pointstamp is outstanding at a location and time.

        >>> Base(1, (Antichain.of(5),)).before(Location(0), 4)
        True
        """
        return not self.bounds[location].less_equal(time)


@dataclass(frozen=True, slots=True)
class OpeningFrame:
    """A frame that opens a member to a joining worker: its contribution from a base on."""

    base: Base
    sent: int
    """The number of updates in the contribution."""
    changes: list[Change]


@dataclass(frozen=True, slots=True)
class MemberFrame:
    """A frame that reports a change of the membership."""

    news: News
    members: tuple[WorkerId, ...] = ()
    """All other members in a welcome, else the one member that joins or leaves."""
    time: int = 0
    """The time from which on the leaving worker receives no message."""
    checkpoint: int = 0
    """The number of the last started checkpoint, in a welcome."""
    rest: tuple[Change, ...] = ()
    """The contribution of a member that leaves to times at or after that one."""


@dataclass(frozen=True, slots=True)
class DataFrame:
    """A frame that carries one message on one edge."""

    edge: EdgeId
    time: Time
    payload: Payload
    checkpoint: int = 0
    """The number of the last checkpoint for which the sender has frozen."""


@dataclass(frozen=True, slots=True)
class CheckpointFrame:
    """A frame that concerns the n-th checkpoint of its flow."""

    checkpoint: int


@dataclass(frozen=True, slots=True)
class PauseFrame(CheckpointFrame):
    """A frame by which the coordinator pauses the sources before a checkpoint.

    They send no record later than `limit`, or than those they have sent. The checkpoint waits until
    at most `max_bytes` bytes are in flight.
    """

    limit: int | None
    max_bytes: int


@dataclass(frozen=True, slots=True)
class CancelFrame(CheckpointFrame):
    """A frame by which the coordinator cancels a checkpoint."""


@dataclass(frozen=True, slots=True)
class TriggerFrame(CheckpointFrame):
    """A frame by which the coordinator freezes members for a checkpoint. `retained` names the
    retained checkpoints."""

    members: tuple[WorkerId, ...]
    retained: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class MarkerFrame(CheckpointFrame):
    """A marker: the number of messages that a frozen peer sent to the receiver before its cut."""

    sent: int


@dataclass(frozen=True, slots=True)
class CompleteFrame(CheckpointFrame):
    """A frame by which the coordinator announces a complete checkpoint."""

    passed: int = 0
    """All results before this time had reached their sinks."""
    held_back: tuple[tuple[int, int], ...] = ()
    """Bins and times: outboxes hold back the results of each bin from its time on."""


@dataclass(frozen=True, slots=True)
class CreditFrame:
    """A frame that returns credit: an operator of the sender has consumed these bytes."""

    edge: EdgeId
    size: int


ProgressUpdate = ProgressFrame | ProgressAckFrame | Base | OpeningFrame | MemberFrame
AnyFrame = ProgressUpdate | DataFrame | CreditFrame | CheckpointFrame


def encode_progress(
    changes: Sequence[Change], updates: int = 1, overrides: Sequence[TimestampOverride] = ()
) -> Frame:
    """Encode a progress update, or the sum of several, as a frame.

    >>> decode(encode_progress([(Location(3), (5, 1), -1)])).changes
    [(3, (5, 1), -1)]
    """
    return [PROGRESS + msgpack.packb((updates, changes, overrides))]


def encode_progress_ack(updates: int) -> Frame:
    """Encode the number of received updates as a frame.

    >>> decode(encode_progress_ack(256))
    ProgressAckFrame(updates=256)
    """
    return [PROGRESS_ACK + msgpack.packb(updates)]


def encode_base(base: Base) -> Frame:
    """Encode a base as a frame.

    >>> decode(encode_base(Base(1, (Antichain.of(5), Antichain()), ((WorkerId(0), 7),))))
    Base(number=1, bounds=(Antichain(times=(5,)), Antichain(times=())), cut=((0, 7),))
    """
    return [MEMBERS + msgpack.packb(("base", *_base_fields(base)))]


def encode_opening(base: Base, sent: int, changes: list[Change]) -> Frame:
    """Encode the opening for a joining worker as a frame."""
    return [MEMBERS + msgpack.packb(("opening", *_base_fields(base), sent, changes))]


def encode_member(
    news: News, members: tuple[WorkerId, ...] = (), time: int = 0, checkpoint: int = 0,
    rest: Sequence[Change] = (),
) -> Frame:  # fmt: skip
    """Encode a change of the membership as a frame.

    >>> decode(encode_member("joins", (WorkerId(3),)))
    MemberFrame(news='joins', members=(3,), time=0, checkpoint=0, rest=())
    """
    return [MEMBERS + msgpack.packb((news, members, time, checkpoint, rest))]


def encode_checkpoint(frame: CheckpointFrame) -> Frame:
    """Encode a checkpoint frame. It overtakes all messages.

    >>> decode(encode_checkpoint(TriggerFrame(3, (WorkerId(0), WorkerId(2)), retained=(1, 2))))
    TriggerFrame(checkpoint=3, members=(0, 2), retained=(1, 2))
    """
    return [CHECKPOINT + msgpack.packb((CHECKPOINT_WORDS[type(frame)], *astuple(frame)))]


def check_size(peer: WorkerId, frame: Frame, max_bytes: int = MAX_FRAME) -> None:
    """Raise MeanderError for a frame that is longer than a link takes."""
    if (size := sum(map(len, frame))) > max_bytes:
        raise MeanderError(
            f"a frame for {member_name(peer)}",
            f"its {size:,} bytes are more than the bound of {max_bytes:,} bytes",
            "make the values of the flow smaller",
        )


def is_ordered(frame: Frame) -> bool:
    """Return whether a frame keeps its order with progress and checkpoint frames, and needs no
    credit."""
    return frame[0][:1] in (PROGRESS, PROGRESS_ACK, MEMBERS, CHECKPOINT)


def encode_data(edge: EdgeId, time: Time, payload: Payload, checkpoint: int = 0) -> Frame:
    """Encode a message as a frame."""
    head = DATA + msgpack.packb((edge, time, type(payload).__name__, checkpoint))
    if isinstance(payload, Batch):
        return [head, *_encode_batch(payload)]
    return [head, payload.to_bytes()]


def encode_credit(edge: EdgeId, size: int) -> Frame:
    """Encode returned credit as a frame.

    >>> decode(encode_credit(EdgeId(3), 4096))
    CreditFrame(edge=3, size=4096)
    """
    return [CREDIT + msgpack.packb((edge, size))]


def decode(frame: Frame) -> AnyFrame:
    """Decode a frame. Raises MeanderError for a malformed frame."""
    try:
        return _decode(frame)
    except MeanderError:
        raise
    except Exception as error:  # Arrow, Avro and msgpack raise many types of errors
        raise MeanderError("a frame of a peer", f"it cannot be read: {error}") from error


def _decode(frame: Frame) -> AnyFrame:
    kind, body, parts = frame[0][:1], msgpack.unpackb(frame[0][1:], use_list=False), frame[1:]
    if kind == PROGRESS and not parts:
        updates, changes, overrides = body
        ruled = tuple(map(_override, _expect_list(overrides))) if overrides else ()
        return ProgressFrame(_changes(changes), expect_count(updates), ruled)
    if kind == PROGRESS_ACK and not parts:
        return ProgressAckFrame(expect_count(body))
    if kind == MEMBERS and not parts:
        return _decode_members(*body)
    if kind == DATA:
        edge, time, name, number = body
        payload = _decode_payload(name, parts)
        return DataFrame(EdgeId(expect_count(edge)), _time(time), payload, expect_count(number))
    if kind == CREDIT and not parts:
        edge, size = body
        return CreditFrame(EdgeId(expect_count(edge)), expect_count(size))
    if kind == CHECKPOINT and not parts:
        return _decode_checkpoint(*body)
    raise ValueError(f"{len(frame)} parts of kind {kind!r} are no frame")


def _decode_members(news: object, *fields: object) -> Base | OpeningFrame | MemberFrame:
    match news, fields:
        case "base", [number, bounds, cut]:
            return _base(number, bounds, cut)
        case "opening", [number, bounds, cut, sent, changes]:
            return OpeningFrame(_base(number, bounds, cut), expect_count(sent), _changes(changes))
        case ("welcome" | "joins" | "leave" | "leaves" | "left") as news, [
            members,
            time,
            number,
            rest,
        ]:
            numbers = tuple(WorkerId(expect_int(member)) for member in _expect_list(members))
            changes = tuple(_changes(rest))
            return MemberFrame(news, numbers, expect_count(time), expect_count(number), changes)
    raise ValueError(f"{news!r} with {len(fields)} fields is no member frame")


CHECKPOINT_WORDS: Final[dict[type[CheckpointFrame], str]] = {
    PauseFrame: "pause", TriggerFrame: "trigger", MarkerFrame: "marker", CompleteFrame: "complete",
    CancelFrame: "cancel",
}  # fmt: skip


def _decode_checkpoint(word: object, number: object, *fields: object) -> CheckpointFrame:
    match word, fields:
        case "pause", [limit, max_bytes]:
            until = None if limit is None else expect_int(limit)
            return PauseFrame(expect_count(number), until, expect_count(max_bytes))
        case "trigger", [members, retained]:
            named = tuple(WorkerId(expect_count(member)) for member in _expect_list(members))
            return TriggerFrame(
                expect_count(number), named, tuple(map(expect_count, _expect_list(retained)))
            )
        case "marker", [sent]:
            return MarkerFrame(expect_count(number), expect_count(sent))
        case "complete", [passed, held_back]:
            pairs = (map(expect_count, _expect_list(pair)) for pair in _expect_list(held_back))
            bins = tuple((bin, time) for bin, time in pairs)
            return CompleteFrame(expect_count(number), expect_count(passed), bins)
        case "cancel", []:
            return CancelFrame(expect_count(number))
    raise ValueError(f"{word!r} with {len(fields)} fields is no checkpoint frame")


def _base_fields(base: Base) -> tuple[object, ...]:
    return base.number, [bound.times for bound in base.bounds], base.cut


def _base(number: object, bounds: object, cut: object) -> Base:
    pairs = [_expect_list(pair) for pair in _expect_list(cut)]
    return Base(
        expect_count(number),
        tuple(Antichain.of(*map(_time, _expect_list(bound))) for bound in _expect_list(bounds)),
        tuple((WorkerId(expect_int(member)), expect_count(sent)) for member, sent in pairs),
    )


def _expect_list(value: object) -> tuple[object, ...]:
    if isinstance(value, tuple):
        return value
    raise TypeError(f"{value!r} is not a list")


def _changes(changes: object) -> list[Change]:
    # Most frames hold changes, so valid changes are not copied.
    known = cast(tuple[Change, ...], _expect_list(changes))
    for change in known:
        location, time, delta = _expect_list(change)
        if type(location) is not int or location < 0:
            raise TypeError(f"{location!r} is not a location")
        if type(time) is not int:
            _time(time)
        if type(delta) is not int:
            raise TypeError(f"{delta!r} is not a count")
    return list(known)


def _override(override: object) -> TimestampOverride:
    *numbers, last = _expect_list(override)
    origin, partition, offset, time = map(expect_count, numbers)
    until = None if last is None else expect_count(last)
    return TimestampOverride(origin, Partition(partition), offset, time, until)


def _time(time: object) -> Time:
    if type(time) is int:
        return time
    if type(time) is tuple and len(time) > 1 and all(type(t) is int for t in time):
        return time
    raise TypeError(f"{time!r} is not a time")


def _decode_payload(name: str, parts: list[bytes]) -> Payload:
    match parts:
        case [columns, values, *extra] if name == "Batch" and len(extra) <= 1:
            return _decode_batch(columns, values, *extra)
        case [data] if name in _CONTROL_PAYLOADS:
            return _CONTROL_PAYLOADS[name].from_bytes(data)
    raise ValueError(f"{len(parts)} parts of {name!r} are no payload")


_CONTROL_PAYLOADS: Mapping[str, type[ControlPayload]] = {
    kind.__name__: kind
    for kind in (
        BinHandoff,
        Moves,
        StartPreCopy,
        Prefetch,
        CancelMove,
        Rewrite,
        Revoke,
        PrepareLogic,
        LogicChange,
        ReassignPartition,
        PartitionHandoff,
    )
}
"""The payloads that travel as one part."""


def _encode_batch(batch: Batch) -> list[bytes]:
    columns = [batch.times, batch.origins, batch.partitions, batch.offsets, batch.indexes]
    packed = encode_values(batch.values) if batch.packed is None else batch.packed
    extra = [extra_columns.encode(batch.extra)] if batch.extra else []
    if batch.keys is None or batch.hashes is None:
        return [_KEYLESS.write(columns), packed, *extra]
    return [_KEYED.write([*columns, batch.hashes], batch.keys), packed, *extra]


def _decode_batch(columns: bytes, packed: bytes, extra: bytes | None = None) -> Batch:
    keyed = _KEYED.matches(columns)
    (times, origins, partitions, offsets, indexes, *hashes), keys = (
        _KEYED if keyed else _KEYLESS
    ).read(columns)
    values = decode_values(packed)
    if len(values) != len(times):
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
        extra=None if extra is None else extra_columns.decode(extra, len(times)),
    )
