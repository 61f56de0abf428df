"""A real frame of every kind that members send each other."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import msgspec
import numpy as np

from meander.app.protocol.messages import (
    FROM_PEER,
    FROM_WORKER,
    REPLY,
    REQUEST,
    TO_WORKER,
    AddFiles,
    AddPeer,
    Alive,
    Connect,
    Done,
    DropPeer,
    Exit,
    Failure,
    FilesAdded,
    HeartbeatAck,
    Log,
    MemberInfo,
    MemberList,
    PeerAdded,
    PeerLeft,
    PeerLeftAck,
    Reader,
    Ready,
    Register,
    Rejection,
    Report,
    Restart,
    StopExecution,
    Stopped,
    WorkerHeartbeat,
    _Message,
)
from meander.dataflow import wire
from meander.dataflow.control.bin_handoff import BinHandoff
from meander.dataflow.control.instructions import (
    CancelMove,
    Prefetch,
    Revoke,
    Rewrite,
    StartPreCopy,
)
from meander.dataflow.control.logic_change import LogicChange, LogicVersion, PrepareLogic
from meander.dataflow.control.partition_handoff import PartitionHandoff, ReassignPartition
from meander.dataflow.control.reassignment import Moves
from meander.dataflow.control.reports import (
    Aligned,
    BinInstalled,
    BinPreCopied,
    BinPrefetched,
    BinSizes,
    BinUnreadableReport,
    LayerUnreadableReport,
    LogicPrepared,
    OutboxesSent,
    OutboxFull,
    PartitionsRead,
    ResultsSuppressed,
    SnapshotFailed,
    SnapshotStored,
    SourcesPaused,
    WorkerReport,
)
from meander.dataflow.control.timestamp_overrides import TimestampOverride
from meander.dataflow.graph.graph import EdgeId, Location
from meander.dataflow.interfaces import Frame, Partition, Rest
from meander.dataflow.metrics.histogram import BOUNDS
from meander.dataflow.records.batch import Batch, Int64s
from meander.schemas.errors import MeanderError
from meander.state.encoding import codec
from meander.state.keys.bins import BinSpace
from meander.state.keys.ids import COORDINATOR, Bin, ExecutionId, LayerId, WorkerId
from meander.state.layers.layer import DeltaEntries
from meander.state.layers.manifest import Description, LayerPointer, Manifest
from meander.state.layers.topic import RecordLocation
from meander.state.times.antichain import Antichain


@dataclass(frozen=True)
class Kind:
    """A real frame, how it is read, and the one error by which it may be refused."""

    name: str
    frame: Frame
    read: Callable[[Frame], object]
    write: Callable[[object], Frame]
    refusal: type[Exception]


def _batch(rows: int, keyed: bool, rng: random.Random) -> Batch:
    def column() -> Int64s:
        return np.array([rng.getrandbits(62) for _ in range(rows)], np.int64)

    keys = [codec.encode(rng.choice(["N14228", 7, (1, "a"), ""])) for _ in range(rows)]
    return Batch(
        column(),
        column(),
        column(),
        column(),
        column(),
        [_value(rng) for _ in range(rows)],
        keys if keyed else None,
        BinSpace(8).hash_keys(keys) if keyed else None,
    )


def _value(rng: random.Random) -> object:
    flight = {"tailnum": "N14228", "delay": rng.randint(-60, 900), "by": [1.5, None, True]}
    return rng.choice([flight, rng.getrandbits(70), "word", b"\xc7\0", (1, (2.5, {3, 4})), None])


def _manifest(layers: int) -> Manifest:
    pointers = (
        LayerPointer(
            LayerId(ExecutionId(1), WorkerId(0), n),
            Description(0, 7 + n, 7),
            "base",
            3,
            99 << n,
            "msgpack",
            tuple(RecordLocation(b"layer/1/0/7/%d" % c, 0, c, 2) for c in range(3)),
        )
        for n in range(layers)
    )
    return Manifest("per_plane", Bin(3), 7 << 40, tuple(pointers))


def _write_wire(message: object) -> Frame:
    match message:
        case wire.ProgressFrame(changes, updates, rulings):
            return wire.encode_progress(changes, updates, rulings)
        case wire.ProgressAckFrame(updates):
            return wire.encode_progress_ack(updates)
        case wire.DataFrame(edge, at, payload, checkpoint):
            return wire.encode_data(edge, at, payload, checkpoint)
        case wire.CheckpointFrame():
            return wire.encode_checkpoint(message)
        case wire.CreditFrame(edge, size):
            return wire.encode_credit(edge, size)
        case wire.Base():
            return wire.encode_base(message)
        case wire.OpeningFrame(base, sent, changes):
            return wire.encode_opening(base, sent, changes)
        case wire.MemberFrame(news, members, time, checkpoint, rest):
            return wire.encode_member(news, members, time, checkpoint, rest)
    raise AssertionError(f"{message!r} is no message of the engine")


def _of_engine() -> Iterator[Kind]:
    rng = random.Random(0)
    payloads: list[tuple[str, wire.Payload]] = [
        (f"batch of {rows}{', keyed' * keyed}", _batch(rows, keyed, rng))
        for rows in (0, 1, 5, 100)
        for keyed in (True, False)
    ]
    payloads += [(f"delivery of {n} layers", BinHandoff(_manifest(n))) for n in (0, 1, 4)]
    remainder = DeltaEntries([b"N14228", b"N24211"], [b"a", b"b"], [(7 << 40, b"N14228")])
    payloads += [("delivery of the rest too", BinHandoff(_manifest(1), remainder))]
    words = {"words": ["caf\u00e9", {"limit": None}], "limit": -1.5, "most": 1 << 62}
    versions = LogicVersion.of("Above", {}), LogicVersion.of("rules:Rules.Above", words)
    moves = Moves("m1", 7 << 40, WorkerId(1), tuple(map(Bin, range(40))))
    payloads += [
        ("moves", moves),
        ("prepare", StartPreCopy(1 << 20, Bin(3))),
        ("stage", Prefetch(300, _manifest(2))),
        ("spare", CancelMove(Bin(3))),
        ("rewrite ahead of a move", Rewrite("per_plane", Bin(3), None)),
        ("rewrite at a move", Rewrite("per_plane", Bin(300), 7 << 40)),
        ("revoke", Revoke("m1", 5 << 41)),
        ("prepare logic", PrepareLogic(300, "above", *versions)),
        ("logic", LogicChange("c1", "above", 7 << 40, *versions)),
        ("logic that upgrades", LogicChange("c1", "above", 7 << 40, *versions, 300)),
        ("order", ReassignPartition(0, Partition(3), 7 << 40, WorkerId(2))),
        ("order to begin", ReassignPartition(0, Partition(3), 7 << 40, WorkerId(2), 5)),
        ("parcel", PartitionHandoff(Partition(3), Rest(100, 1 << 33), 7 << 40, 8 << 40, 9 << 40)),
        ("parcel without an end", PartitionHandoff(Partition(300), Rest(0, None), 0, 0, 1)),
    ]
    frames = [(name, wire.encode_data(EdgeId(3), 5 << 41, load)) for name, load in payloads]
    changes: list[wire.Change] = [(Location(n), (5 << 40) + n, (-1) ** n) for n in range(20)]
    rulings = [TimestampOverride(n % 2, Partition(3), 99 << n, n << 40) for n in range(5)]
    rulings.append(TimestampOverride(0, Partition(3), 7, 5 << 40, last=9 << 40))
    frames += [
        ("moves, nested time", wire.encode_data(EdgeId(300), (5, 1, 2), moves)),
        ("progress", wire.encode_progress(changes)),
        ("progress, added up", wire.encode_progress(changes, 7)),
        ("progress with rulings", wire.encode_progress(changes[:3], 1, rulings)),
        ("progress that has arrived", wire.encode_progress_ack(256)),
        ("progress, nested times", wire.encode_progress([(Location(1), (5, 6), -(1 << 40))])),
        ("opening", wire.encode_progress([])),
        ("taken", wire.encode_credit(EdgeId(3), 4 << 20)),
        ("pause", wire.encode_checkpoint(wire.PauseFrame(3, 5 << 41, 1 << 20))),
        ("pause where they are", wire.encode_checkpoint(wire.PauseFrame(3, None, 0))),
        ("cancel", wire.encode_checkpoint(wire.CancelFrame(3))),
        (
            "freeze",
            wire.encode_checkpoint(wire.TriggerFrame(3, tuple(map(WorkerId, range(9))), (1, 2))),
        ),
        ("marker", wire.encode_checkpoint(wire.MarkerFrame(3, 1 << 33))),
        ("complete", wire.encode_checkpoint(wire.CompleteFrame(3))),
    ]
    outer = [Antichain.of((5 << 40) + n) for n in range(12)]
    bounds = (*outer, Antichain(), Antichain.of((3, 4), (4, 3)))
    base = wire.Base(7, bounds, ((COORDINATOR, 3), (WorkerId(1), 1 << 33)))
    frames += [
        ("base", wire.encode_base(base)),
        ("opening to a newcomer", wire.encode_opening(base, 12, changes)),
        ("welcome", wire.encode_member("welcome", tuple(map(WorkerId, range(-1, 9))))),
        ("leave", wire.encode_member("leave", (), 5 << 40)),
        ("left", wire.encode_member("left", (WorkerId(9),))),
        ("joins", wire.encode_member("joins", (WorkerId(9),))),
        ("leaves", wire.encode_member("leaves")),
    ]
    for name, frame in frames:
        yield Kind(name, frame, wire.decode, _write_wire, MeanderError)


def _of_app() -> Iterator[Kind]:
    key, address = b"k" * 40, "tcp://127.0.0.1:40123"
    versions = {"Python": "3.11", "numpy": "2.4"}
    listed = [MemberInfo(worker=worker, address=address, public=key) for worker in (-1, 0, 2)]
    moved = BinInstalled("n", Bin(3), 7, 9, 1)
    precopied = BinPreCopied(5, "n", Bin(3), _manifest(2).to_bytes())
    staged = BinPrefetched(5, "n", Bin(3), 9)
    unreadable = BinUnreadableReport("n", Bin(3), 5, None, "its checksum is 1")
    late = BinUnreadableReport("n", Bin(3), None, 7, "its checksum is 1")
    layer = LayerUnreadableReport("its checksum is 1")
    sizes = BinSizes("n", [(Bin(3), 9 << 20, 17), (Bin(300), 0, 0)])
    taken: list[WorkerReport] = [
        SourcesPaused(7, 5 << 40),
        Aligned(7),
        SnapshotFailed(7, "the disk is full"),
    ]
    sent: list[WorkerReport] = [OutboxesSent(7), OutboxFull()]
    loaded: list[WorkerReport] = [
        LogicPrepared(300, "Above", "{}", upgrades=True, error=""),
        LogicPrepared(
            0, "Above", "{}", upgrades=False, error="operator 'above': its logic cannot be imported"
        ),
    ]
    stored = SnapshotStored(7, b"slice", [(3, 5 << 40)], last=True)
    tallies = [
        (ExecutionId(1 << 42), WorkerId(0), 17, (1 << 64) - 1),
        (ExecutionId(1 << 43), WorkerId(2), 0, 0),
    ]
    register = Register(
        token=b"t" * 32, address=address, public=key, pid=17, host="here", versions=versions
    )
    alive = Alive(token=b"t" * 32, operator="per_plane")
    yield from _read_by(REQUEST, register, Ready(token=b"t" * 32), alive)
    turned = Rejection(reason="its launch token is unknown")
    yield from _read_by(REPLY, MemberList(peers=listed), turned, Connect(), HeartbeatAck())
    reads = PartitionsRead("lines", [0, 3], 4)
    again = Restart(
        worker=1, workers=3, execution=1 << 42, checkpoint=7, token=b"t" * 32, server=address,
        server_key=key, outside={"out": {"max.message.bytes": "5000"}},
    )  # fmt: skip
    yield from _read_by(
        TO_WORKER,
        WorkerHeartbeat(),
        AddPeer(peer=listed[2]),
        AddFiles(number=1, files={"rules/later.py": b"LIMIT = 3"}),
        DropPeer(worker=2),
        StopExecution(),
        Exit(),
        again,
    )
    yield from _read_by(FROM_PEER, PeerLeft())
    yield from _read_by(
        FROM_WORKER,
        msgspec.convert(_standing(), WorkerHeartbeat),
        Log(
            logger="meander",
            level=30,
            event="broker_lost",
            fields={"seconds": 1.5, "port": 9092},
            detail="",
        ),
        Report([moved, reads, moved, sizes]),
        Report([precopied, staged, unreadable, late, layer]),
        Report([*taken, stored, *sent, ResultsSuppressed("counts", tallies)]),
        Report(loaded),
        PeerAdded(worker=2),
        FilesAdded(number=1),
        PeerLeftAck(worker=0),
        Failure(of="lost", subject="worker 1", cause="x", remedy="", trace="t", peer=-1),
        Failure(
            of="lost",
            subject="a",
            cause="x",
            remedy="",
            trace="t",
            limits={"out": {"a": "5"}},
        ),
        Done(counters={"read": 1 << 40}),
        Stopped(),
    )


def _standing() -> dict[str, object]:
    """How a worker stands."""
    took = {"counts": [*range(len(BOUNDS) + 1)], "seconds": 0.25}
    lines = {"partitions": [0, 3], "times": [5 << 40, 0], "states": ["idle", "sending"]}
    return {
        "counters": {"read": 17, "late_adjusted": 0},
        "inflight": 1 << 20,
        "operators": {"per_plane": {"received": 17, "sent": 16, "busy": 0.25, "durations": took}},
        "sources": {"lines": {**lines, "delays": took}},
        "sent": {0: 400, 2: 0},
        "taken": {0: 100},
    }


M = TypeVar("M", bound=_Message)


def _read_by(reader: Reader[M], *given: M) -> Iterator[Kind]:
    def read(frame: Frame) -> object:
        return reader.read(b"".join(frame))

    for message in given:
        yield Kind(type(message).__name__, [message.to_bytes()], read, _write_app, ValueError)


def _write_app(message: object) -> Frame:
    assert isinstance(message, _Message)
    return [message.to_bytes()]


KINDS: list[Kind] = [*_of_engine(), *_of_app()]
