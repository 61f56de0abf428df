"""Mutated frames of every kind that members send each other, and what must not come of them.

Case n of a seed is a real encoded frame with some damage. Reading it gives a message that is whole,
or the one declared refusal; never another error, a hang, or memory that the frame does not hold.
Run as a program (place, seed, least number, seconds) it reads one case after another, and writes
down which before it does, so that a crash of the process names its case too.
"""

from __future__ import annotations

import mmap
import random
import resource
import signal
import struct
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain, count
from pathlib import Path

import pyarrow as pa

from meander.dataflow import wire
from meander.dataflow.control.instructions import (
    CancelMove,
    Prefetch,
    Revoke,
    Rewrite,
    StartPreCopy,
)
from meander.dataflow.control.logic_change import LogicChange, PrepareLogic
from meander.dataflow.control.partition_handoff import PartitionHandoff, ReassignPartition
from meander.dataflow.control.reassignment import Moves
from meander.dataflow.interfaces import Frame, Rest
from meander.dataflow.records.batch import Batch
from tests.support.property.real_frames import KINDS, Kind

PATIENCE = 30.0
"""Seconds after which reading one frame of some KiB is taken to hang."""
ROOM = 2 << 30
"""Bytes that the process may ask for beyond what it has at the start."""
RESIDENT = 256 << 10
"""KiB by which its memory may really grow: what stays of so many frames is nothing."""
PROGRESS_PLACE = struct.Struct("<Q")


# -- damage

TAGS = bytes([0x80, 0x90, 0x9F, 0xA0, *range(0xC0, 0xE0), 0xFF])
NUMBERS = [
    struct.pack(form, number)
    for number in (0, 1, 0x7F, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, 0x7FFFFFFFFFFFFFFF)
    for form in ("<Q", ">Q", "<I", ">I", ">H")
    if number < 1 << (8 * struct.calcsize(form))
]


def case(seed: int, n: int) -> tuple[Kind, Frame]:
    """One kind, and a damaged frame of it."""
    rng = random.Random(f"{seed}/{n}")
    kind = rng.choice(KINDS)
    frame = list(kind.frame)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        frame = rng.choice(DAMAGES)(frame, rng)
    return kind, frame


FRAGMENTS = [
    *(b"\xc7\0" + bytes([code]) for code in range(9)),
    b"\xd6\xff\0\0\0\1", b"\xd4\1x", b"\xc2", b"\xc3", b"\xc0", b"\x91\x05", b"\xa1a", b"\xc4\1a",
]  # fmt: skip
"""Of msgpack: extensions, full and empty, a time, truth, none, a list, words."""

Damage = Callable[[Frame, random.Random], Frame]


def _in_part(change: Callable[[bytes, int, random.Random], bytes]) -> Damage:
    def damage(frame: Frame, rng: random.Random) -> Frame:
        if not frame:
            return frame
        which = rng.randrange(len(frame))
        part = frame[which]
        # Heads, lengths and descriptions stand near the beginning.
        near = rng.random() < 0.5
        at = rng.randint(0, min(len(part), 64) if near else len(part))
        return [*frame[:which], change(part, at, rng), *frame[which + 1 :]]

    return damage


def _over(part: bytes, at: int, what: bytes) -> bytes:
    return part[:at] + what + part[at + len(what) :]


def _flip(part: bytes, at: int, rng: random.Random) -> bytes:
    return _over(part, at, bytes([part[at] ^ (1 << rng.randrange(8))])) if at < len(part) else part


def _splice(frame: Frame, rng: random.Random) -> Frame:
    other = rng.choice(KINDS).frame
    if not frame or rng.random() < 0.5:
        return [*frame[: rng.randint(0, 2)], *other[rng.randint(0, 2) :]]
    one, two = rng.choice(frame), rng.choice(other)
    joined = one[: rng.randint(0, len(one))] + two[rng.randint(0, len(two)) :]
    return [joined if part is one else part for part in frame]


def _parts(frame: Frame, rng: random.Random) -> Frame:
    less = frame[: rng.randint(0, len(frame))]
    return rng.choice([less, [*frame, rng.randbytes(rng.randint(0, 9))], frame[::-1]])


DAMAGES: list[Damage] = [
    _in_part(_flip),
    _in_part(_flip),
    _in_part(lambda part, at, rng: part[:at]),
    _in_part(lambda part, at, rng: part + rng.randbytes(rng.randint(1, 40))),
    _in_part(lambda part, at, rng: part[:at] + part[at + rng.randint(1, 9) :]),
    _in_part(lambda part, at, rng: part[:at] + rng.randbytes(rng.randint(1, 9)) + part[at:]),
    _in_part(lambda part, at, rng: part[:at] + part[at : at + rng.randint(1, 40)] + part[at:]),
    _in_part(lambda part, at, rng: _over(part, at, rng.choice(NUMBERS))),
    _in_part(lambda part, at, rng: _over(part, at & ~7, rng.choice(NUMBERS))),
    _in_part(lambda part, at, rng: _over(part, at, bytes([rng.choice(TAGS)]))),
    _in_part(lambda part, at, rng: _over(part, at, bytes([rng.choice(TAGS)] * 30))),
    _in_part(lambda part, at, rng: part[:at] + rng.choice(FRAGMENTS) + part[at + 1 :]),
    _splice,
    _parts,
]


# -- what must hold


def read(kind: Kind, frame: Frame) -> bool:
    """Whether a frame was taken. Raises AssertionError where that or the refusal is wrong."""
    try:
        message = kind.read(frame)
    except kind.refusal as error:
        cause = error.__cause__
        assert not isinstance(cause, MemoryError), f"memory that it does not hold: {cause}"
        return False
    assert _whole(message), f"no whole message: {message!r}"
    again = kind.write(message)
    assert kind.write(kind.read(again)) == again, f"no message to be sent on: {message!r}"
    return True


def _whole(message: object) -> bool:
    """Whether a message of the engine has what its types promise; the app's say so themselves."""
    match message:
        case wire.ProgressAckFrame(updates):
            return _numbers(updates)
        case wire.ProgressFrame(changes, updates, rulings):
            ruled = all(_numbers(*one[:4], one.last or 0) for one in rulings)
            counted = all(_numbers(at, delta) and _is_time(t) for at, t, delta in changes)
            return _numbers(updates) and ruled and counted
        case wire.CreditFrame(edge, size):
            return _numbers(edge, size)
        case wire.Base(number, bounds, cut):
            times = [time for bound in bounds for time in bound]
            return _numbers(number, *chain(*cut)) and all(map(_is_time, times))
        case wire.OpeningFrame(base, sent, changes):
            return _numbers(sent) and _whole(base) and _whole(wire.ProgressFrame(changes))
        case wire.MemberFrame(_, members, time, checkpoint, rest):
            return _numbers(time, checkpoint, *members) and _whole(wire.ProgressFrame([*rest]))
        case wire.CheckpointFrame():
            return _whole_cut(message)
        case wire.DataFrame(edge, at, payload, checkpoint):
            return _numbers(edge, checkpoint) and _is_time(at) and _whole_payload(payload)
    return True


def _whole_cut(word: wire.CheckpointFrame) -> bool:
    match word:
        case wire.PauseFrame(checkpoint, limit, most):
            return _numbers(checkpoint, limit or 0, most)
        case wire.TriggerFrame(checkpoint, members, kept):
            return _numbers(checkpoint, *members, *kept)
        case wire.MarkerFrame(checkpoint, sent):
            return _numbers(checkpoint, sent)
    return _numbers(word.checkpoint)


def _whole_payload(payload: wire.Payload) -> bool:
    match payload:
        case Moves(command, at, target, bins):
            return type(command) is str and _numbers(at, target, *bins)
        case PrepareLogic() | LogicChange():
            return _whole_logic(payload)
        case Revoke(command, at):
            return type(command) is str and _numbers(at)
        case ReassignPartition(source, partition, at, target, offset):
            return _numbers(source, partition, at, target, offset or 0)
        case PartitionHandoff(partition, Rest(offset, end), maximum, newest, frontier):
            return _numbers(partition, offset, end or 0, maximum, newest, frontier)
        case Batch():
            columns = (getattr(payload, name) for name in _COLUMNS)
            return all(column is None or len(column) == len(payload) for column in columns)
        case StartPreCopy() | Prefetch() | CancelMove() | Rewrite():
            return _whole_instruction(payload)
    return True


def _whole_instruction(instruction: StartPreCopy | Prefetch | CancelMove | Rewrite) -> bool:
    match instruction:
        case StartPreCopy(number, bin):
            return _numbers(number, bin)
        case Prefetch(number):
            return _numbers(number)
        case CancelMove(bin):
            return _numbers(bin)
        case Rewrite(operator, bin, at):
            return type(operator) is str and _numbers(bin, at or 0)


def _whole_logic(message: PrepareLogic | LogicChange) -> bool:
    names = [message.operator, message.before.name, message.version.name]
    parameters = [message.before.values, message.version.values]
    match message:
        case PrepareLogic(number=number):
            numbers = [number]
        case LogicChange(command, time=at, generation=generation):
            numbers, names = [at, generation], [command, *names]
    whole = all(type(name) is str for name in names) and _numbers(*numbers)
    return whole and all(type(one) is dict for one in parameters)


_COLUMNS = ["times", "origins", "partitions", "offsets", "indexes", "keys", "hashes"]


def _numbers(*numbers: object) -> bool:
    return all(type(number) is int for number in numbers)


def _is_time(time: object) -> bool:
    return _numbers(time) or (isinstance(time, tuple) and len(time) > 1 and _numbers(*time))


class Hangs(Exception):
    """Reading has no end."""


@contextmanager
def _watched() -> Iterator[None]:
    """No end, no room: what a frame could do to the process becomes an error."""

    def hangs(*_: object) -> None:
        raise Hangs

    signal.signal(signal.SIGALRM, hangs)
    pages = int(Path("/proc/self/statm").read_text("ascii").split()[0])
    room = pages * resource.getpagesize() + ROOM
    resource.setrlimit(resource.RLIMIT_AS, (room, room))
    before = resident()
    yield
    grown = resident() - before
    assert grown < RESIDENT, f"memory has grown by {grown} KiB"
    most = pa.default_memory_pool().max_memory()
    assert most < RESIDENT << 10, f"Arrow has taken {most} bytes"


def resident() -> int:
    """The most memory that this process has had so far, KiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def main(place: str, seed: int, floor: int, seconds: float) -> None:
    begun = time.monotonic()
    taken: Counter[bool] = Counter()
    with Path(place).open("r+b") as file, mmap.mmap(file.fileno(), 0) as now, _watched():
        for n in count():
            if n >= floor and time.monotonic() - begun > seconds:
                break
            PROGRESS_PLACE.pack_into(now, 0, n)
            kind, frame = case(seed, n)
            signal.setitimer(signal.ITIMER_REAL, PATIENCE)
            taken[read(kind, frame)] += 1
            signal.setitimer(signal.ITIMER_REAL, 0)
    sys.stdout.write(f"{taken[True]} {taken[False]}\n")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))
