"""I4, I7: no damaged frame is obeyed, crashes, hangs or fills the process that reads it."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import get_args

import msgpack
import pyarrow as pa
import pytest

from meander.app.protocol.messages import FromWorker, PeerLeft, Reply, Report, Request, ToWorker
from meander.dataflow.control.reports import WorkerReport
from meander.dataflow.interfaces import Frame
from meander.dataflow.wire import (
    CHECKPOINT_WORDS,
    DATA,
    AnyFrame,
    CheckpointFrame,
    DataFrame,
    MemberFrame,
    News,
    Payload,
    decode,
)
from meander.schemas.errors import MeanderError
from meander.state.encoding import codec
from meander.state.keys.ids import COORDINATOR, WorkerId, member_name
from meander.state.store.store import Databases
from meander.testing import TestFlow
from tests.support.property import frames
from tests.support.property.budget import FIRST_SEED, FRAMES, PART, SECONDS
from tests.support.property.cases import random_case
from tests.support.property.frontier_watch import flow_of
from tests.support.property.real_frames import KINDS, Kind

ROOT = Path(__file__).parents[2]
FLOOR = 50_000
WORKERS, DAMAGED = 6, 300
"""Runs, and damaged frames in each, that a worker of the engine takes."""


@pytest.mark.soak
def test_a_mutated_frame_is_a_message_or_refused(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    place, seed = tmp_path / "case", FIRST_SEED + PART
    place.write_bytes(bytes(frames.PROGRESS_PLACE.size))
    words = map(str, (place, seed, FLOOR, FRAMES * SECONDS))
    ran = subprocess.run(
        [sys.executable, "-m", "tests.support.property.frames", *words],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if ran.returncode:
        (n,) = frames.PROGRESS_PLACE.unpack(place.read_bytes())
        kind, frame = frames.case(seed, n)
        parts = "\n".join(part.hex() for part in frame)
        pytest.fail(
            f"{ran.stderr}\nexit code {ran.returncode} at seed {seed}, case {n}:"
            f" a damaged {kind.name!r} of {len(frame)} parts, in hex:\n{parts}"
        )
    taken, refused = map(int, ran.stdout.split())
    record_property("mutated frames", taken + refused)
    record_property("of these refused", refused)
    assert taken + refused >= FLOOR
    assert taken and refused


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_what_is_not_damaged_is_taken(kind: Kind) -> None:
    assert frames.read(kind, kind.frame)


def test_every_kind_of_frame_is_among_those_that_are_damaged() -> None:
    """Every message, every payload and all news that members of a flow can send each other, and
    every message and every report of the app."""
    messages = [decode(kind.frame) for kind in KINDS if kind.read is decode]
    payloads = {type(message.payload) for message in messages if isinstance(message, DataFrame)}
    news = {message.news for message in messages if isinstance(message, MemberFrame)}
    assert {type(message) for message in messages} == {*get_args(AnyFrame), *CHECKPOINT_WORDS} - {
        CheckpointFrame
    }
    assert payloads == set(get_args(Payload))
    assert news == set(get_args(News))
    read = [kind.read(kind.frame) for kind in KINDS if kind.read is not decode]
    reports = {
        type(one) for message in read if isinstance(message, Report) for one in message.reports
    }
    assert reports == set(get_args(WorkerReport))
    said = {*map(type, read)}
    assert said == {PeerLeft}.union(*map(get_args, (Request, Reply, ToWorker, FromWorker)))


# -- what damage hits too seldom


def test_columns_that_say_they_are_compressed_are_not_unpacked() -> None:
    """I6: some hundred bytes could ask for any amount of memory."""
    kind = next(kind for kind in KINDS if kind.name == "batch of 5, keyed")
    head, columns, values = kind.frame
    table = pa.ipc.open_stream(columns).read_next_batch()
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_batch(table)
    with pytest.raises(MeanderError, match="a frame of a peer"):
        decode([head, sink.getvalue().to_pybytes(), values])


def test_sets_within_sets_without_end_are_refused() -> None:
    kind = next(kind for kind in KINDS if kind.name == "batch of 1")
    nested = codec.encode(0)
    for _ in range(3000):
        nested = b"\x92\xc7\0\3" + bytes(msgpack.packb(nested))
    with pytest.raises(MeanderError, match="a frame of a peer"):
        decode([*kind.frame[:2], b"\x91" + nested])


def test_lists_that_name_more_than_there_is_take_no_memory() -> None:
    """I6: each of a thousand nested lists says that it has as many items as the frame has bytes."""
    size = 1 << 20
    bomb = (b"\xdd" + size.to_bytes(4, "big")) * 1000
    before = frames.resident()
    with pytest.raises(MeanderError, match="a frame of a peer"):
        decode([DATA + bomb + bytes(size)])
    assert frames.resident() - before < frames.RESIDENT


def test_a_builder_that_builds_nothing_is_no_value() -> None:
    """Only plain values come out of a frame, at any depth and inside of sets too."""
    kind = next(kind for kind in KINDS if kind.name == "batch of 1")
    stray = bytes(msgpack.packb([5, msgpack.ExtType(1, b"")]))
    for values in (stray, bytes(msgpack.packb([msgpack.ExtType(3, b""), b"\xc7\0\1"]))):
        with pytest.raises(MeanderError):
            decode([*kind.frame[:2], b"\x91" + values])


STRAYS = [True, 7.5, 1e300, "7", b"7"]


@pytest.mark.parametrize("stray", STRAYS)
@pytest.mark.parametrize("name", ["order", "parcel", "prepare"])
def test_moved_bins_and_partitions_are_named_by_whole_numbers(name: str, stray: object) -> None:
    """I1: anything else would be read as another number than was sent, or as one too great."""
    head, body = next(kind.frame for kind in KINDS if kind.name == name)
    numbers = msgpack.unpackb(body)
    for n in range(len(numbers)):
        with pytest.raises(MeanderError):
            decode([head, msgpack.packb([*numbers[:n], stray, *numbers[n + 1 :]])])


ENGINES = [kind.frame for kind in KINDS if kind.refusal is MeanderError]
"""Among them news of members that no worker has heard of."""


@pytest.mark.parametrize("sender", [WorkerId(1), COORDINATOR])
def test_a_running_worker_takes_a_mutated_frame_or_names_its_sender(
    databases: Databases, sender: WorkerId
) -> None:
    """I1: also what can be read, and names what this flow does not have or what cannot be."""
    answers = []
    for seed in range(FIRST_SEED, FIRST_SEED + WORKERS):
        rng, namespace = random.Random(seed), 2 * seed + (sender == COORDINATOR)
        case = random_case(seed, ("chain", "timers", "connect"))
        with TestFlow(
            flow_of(case), 2, seed, commands=case.commands, databases=databases, namespace=namespace
        ) as run:
            sent = [*_sent(run, sender), *(frame for frame in ENGINES for _ in range(2))]
            for _ in range(DAMAGED):
                frame = rng.choice(sent)
                for _ in range(rng.choice((0, 1, 1, 2))):
                    frame = rng.choice(frames.DAMAGES)(frame, rng)
                answers.append(_answer(run, sender, frame))
    assert set(answers) == {"taken", "refused in the sender's name"}


def _answer(run: TestFlow, sender: WorkerId, frame: Frame) -> str:
    try:
        run.workers[0].receive(sender, frame)
    except MeanderError as error:
        named = member_name(sender) in str(error)
        return "refused in the sender's name" if named else f"{error}: {[p.hex() for p in frame]}"
    return "taken"


def _sent(run: TestFlow, sender: WorkerId) -> Iterator[Frame]:
    """What a member sends to worker 0 in the middle of a run."""
    for _ in range(600):
        if run.sim.done:
            return
        run.sim.act()
        for lane, under_way in run.sim.network.frames.items():
            if lane[:2] == (sender, 0):
                yield from under_way
