"""Frames that are well formed and still wrong for the flow that gets them: refused in the sender's
name, before anything is done."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from meander import Flow
from meander.dataflow.control.bin_handoff import BinHandoff
from meander.dataflow.control.instructions import (
    CancelMove,
    Instruction,
    Prefetch,
    Revoke,
    Rewrite,
    StartPreCopy,
)
from meander.dataflow.control.logic_change import LogicChange, LogicVersion, PrepareLogic
from meander.dataflow.control.partition_handoff import PartitionHandoff, ReassignPartition
from meander.dataflow.control.reassignment import Moves
from meander.dataflow.control.reports import BinPreCopied
from meander.dataflow.control.timestamp_overrides import TimestampOverride
from meander.dataflow.graph.graph import EdgeId, Location
from meander.dataflow.interfaces import Frame, Partition, Rest
from meander.dataflow.records.batch import Batch
from meander.dataflow.simulation.in_memory import ListSink, ListSource
from meander.dataflow.wire import Base, encode_credit, encode_data, encode_opening, encode_progress
from meander.schemas.errors import MeanderError
from meander.state.keys.ids import COORDINATOR, Bin, WorkerId, member_name
from meander.state.layers.manifest import Manifest
from meander.state.times.antichain import Antichain
from tests.support.sim.start import Start

P0 = Partition(0)
EDGES: dict[type, EdgeId] = {
    Moves: EdgeId(0),
    ReassignPartition: EdgeId(1),
    PartitionHandoff: EdgeId(7),
}
"""On which each comes, in the flow of `take`."""
MOVES = Moves("m1", 7, WorkerId(1), (Bin(3), Bin(4)))
DELIVERY = BinHandoff(Manifest("total", Bin(3), 7, ()))
ONE = np.zeros(1, np.int64)
BATCH = Batch(ONE, ONE, ONE, ONE, ONE, [1], [b"k"], ONE.view(np.uint64))
PEER = WorkerId(1)
Take = Callable[..., None]
"""Has a worker take a frame of another, by default of its peer."""


@pytest.fixture
def take(start: Start) -> Take:
    flow = Flow("f", bins=1)
    keyed = flow.source(ListSource([[]])).key_by(lambda value: value)
    keyed.fold("n", lambda: 0, lambda n, _: (n + 1, n + 1)).sink(ListSink())
    run = start(flow, workers=2)
    run.run_until_idle()

    def taken(frame: Frame, sender: WorkerId = PEER) -> None:
        run.workers[0].receive(sender, frame)

    return taken


def test_a_peer_that_runs_another_flow_is_found_out(take: Take) -> None:
    for edge in (2, 99):
        with pytest.raises(
            MeanderError, match=f"worker 1: it sent a message on edge {edge}, which"
        ):
            take(encode_data(EdgeId(edge), 5, MOVES))
    for location, time in ((99, 5), (0, (5, 1))):
        with pytest.raises(
            MeanderError, match="worker 1: it counts messages at a location or time"
        ):
            take(encode_progress([(Location(location), time, 1)]))


@pytest.mark.parametrize("payload", [DELIVERY, BATCH])
def test_a_payload_where_another_belongs_is_refused_in_the_senders_name(
    take: Take, payload: BinHandoff | Batch
) -> None:
    with pytest.raises(
        MeanderError, match="worker 1: it sent a payload that edge 0 does not carry"
    ):
        take(encode_data(EdgeId(0), 5, payload))
    with pytest.raises(MeanderError, match="worker 1: it sent a message of time .5, 1., which"):
        take(encode_data(EdgeId(0), (5, 1), MOVES))


@pytest.mark.parametrize(
    ("payload", "wrong"),
    [
        (ReassignPartition(-1, P0, 5, WorkerId(1)), "an order for source -1, which"),
        (ReassignPartition(1, P0, 5, WorkerId(1)), "an order for source 1, which"),
        (ReassignPartition(0, P0, 4, WorkerId(1)), "an order for time 4 in a message of time 5"),
        (ReassignPartition(0, P0, 5, WorkerId(1), -1), "an order to read from offset -1, which no"),
        (
            ReassignPartition(0, Partition(-1), 5, WorkerId(1)),
            "partition -1 to another worker, which no",
        ),
        (
            ReassignPartition(0, P0, 5, COORDINATOR),
            "an order for target -1, which is not a worker",
        ),
        (Moves("m", 4, WorkerId(1), (Bin(0),)), "an order for time 4 in a message of time 5"),
        (Moves("m", 5, WorkerId(-2), (Bin(0),)), "an order for target -2, which"),
        (Moves("m", 5, WorkerId(1 << 63), ()), "an order for target 9223372036854775808"),
        (PartitionHandoff(P0, Rest(0, None), 2, 3, 4), "a partition at time 4, before"),
        (
            PartitionHandoff(Partition(-1), Rest(0, None), 5, 5, 6),
            "partition -1 to another worker, which no",
        ),
        (
            PartitionHandoff(Partition(1 << 63), Rest(0, None), 5, 5, 6),
            "partition 9223372036854775808 to",
        ),
    ],
)
def test_what_cannot_change_hands_so_is_refused_in_the_senders_name(
    take: Take, payload: ReassignPartition | PartitionHandoff | Moves, wrong: str
) -> None:
    sender = WorkerId(1) if isinstance(payload, PartitionHandoff) else COORDINATOR
    with pytest.raises(MeanderError, match=f"{member_name(sender)}: it sent {wrong}"):
        take(encode_data(EDGES[type(payload)], 5, payload), sender)


@pytest.mark.parametrize("bin", [-1, 2])
def test_a_move_of_a_bin_that_a_flow_does_not_have_is_refused(take: Take, bin: int) -> None:
    """I2: it would be another bin's, or end the worker without a sentence."""
    moves = Moves("m", 5, WorkerId(1), (Bin(0), Bin(bin)))
    with pytest.raises(MeanderError, match="it names bin .*, and this flow has 2"):
        take(encode_data(EDGES[Moves], 5, moves), COORDINATOR)


@pytest.mark.parametrize("bin", [-1, 2])
@pytest.mark.parametrize(
    "said",
    [
        lambda bin: StartPreCopy(1, bin),
        lambda bin: Prefetch(1, Manifest("n", bin, 5, ())),
        lambda bin: CancelMove(bin),
        lambda bin: Rewrite("n", bin, None),
        lambda bin: Rewrite("n", bin, 5),
    ],
)
def test_a_word_about_a_bin_that_a_flow_does_not_have_is_refused(
    take: Take, said: Callable[[Bin], Instruction], bin: int
) -> None:
    with pytest.raises(
        MeanderError, match="the coordinator: it (sent an unreadable frame|names bin)"
    ):
        take(encode_data(EDGES[Moves], 5, said(Bin(bin))), COORDINATOR)


@pytest.mark.parametrize(
    "said", [Prefetch(1, Manifest("total", Bin(0), 5, ())), Rewrite("total", Bin(0), None)]
)
def test_a_word_about_an_operator_that_a_flow_does_not_have_is_refused(
    take: Take, said: Instruction
) -> None:
    with pytest.raises(MeanderError, match="the coordinator: it names the state of .*'total'"):
        take(encode_data(EDGES[Moves], 5, said), COORDINATOR)


LOGIC = [
    PrepareLogic(1, "n", LogicVersion("A"), LogicVersion("B")),
    LogicChange("c", "n", 5, LogicVersion("A"), LogicVersion("B")),
]


@pytest.mark.parametrize("message", LOGIC)
def test_another_logic_for_an_operator_that_cannot_change_is_refused(
    take: Take, message: PrepareLogic | LogicChange
) -> None:
    frame = encode_data(EDGES[Moves], 5, message)
    with pytest.raises(
        MeanderError, match="the coordinator: it names the logic of operator 'n', which this flow"
    ):
        take(frame, COORDINATOR)
    with pytest.raises(
        MeanderError, match="worker 1: it sent a frame that only the coordinator may"
    ):
        take(frame)


def test_what_is_revoked_is_of_the_time_of_its_message(take: Take) -> None:
    """I2: some workers might have moved by then."""
    with pytest.raises(MeanderError, match="an order for time 4 in a message of time 5"):
        take(encode_data(EDGES[Moves], 5, Revoke("m", 4)), COORDINATOR)


@pytest.mark.parametrize(
    "payload",
    [
        Moves("m", 5, WorkerId(1), (Bin(0),)),
        StartPreCopy(1, Bin(0)),
        Prefetch(1, Manifest("n", Bin(0), 5, ())),
        CancelMove(Bin(0)),
        Rewrite("n", Bin(0), 5),
        Revoke("m", 5),
        ReassignPartition(0, P0, 5, WorkerId(1)),
    ],
)
def test_only_the_coordinator_says_what_changes_hands(
    take: Take, payload: Instruction | Moves | ReassignPartition
) -> None:
    """I2."""
    frame = encode_data(
        EDGES[ReassignPartition if isinstance(payload, ReassignPartition) else Moves], 5, payload
    )
    with pytest.raises(
        MeanderError, match="worker 1: it sent a frame that only the coordinator may"
    ):
        take(frame)
    with pytest.raises(MeanderError, match="the coordinator sent a message of time 5 behind the"):
        take(frame, COORDINATOR)


def test_a_ruling_about_a_source_that_a_flow_does_not_have_is_refused(take: Take) -> None:
    take(encode_progress([], 1, [TimestampOverride(0, P0, 0, 5)]))
    with pytest.raises(MeanderError, match="worker 1: it overrides times of a source that this"):
        take(encode_progress([], 1, [TimestampOverride(1, P0, 0, 5)]))


@pytest.mark.parametrize(
    "ruling",
    [
        TimestampOverride(0, Partition(1 << 63), 0, 5),
        TimestampOverride(0, P0, 1 << 63, 5),
        TimestampOverride(0, P0, 0, 1 << 63),
        TimestampOverride(0, P0, 0, 5, 1 << 63),
    ],
)
def test_a_ruling_about_a_place_that_cannot_be_is_refused(
    take: Take, ruling: TimestampOverride
) -> None:
    """It would be written for good, and end whoever repeats the run."""
    with pytest.raises(MeanderError, match="worker 1: it overrides an offset or time that no part"):
        take(encode_progress([], 1, [ruling]))


def test_who_opens_a_second_time_is_refused(start: Start) -> None:
    """I1: what follows from how many of its updates have come would be wrong."""
    flow = Flow("f", bins=1)
    flow.source(ListSource([[]])).sink(ListSink())
    run = start(flow, workers=2)
    run.run_until_idle()
    base = Base(0, tuple(Antichain.of(scope.bottom) for scope in run.sim.plan.graph.scopes))
    with pytest.raises(MeanderError, match="worker 1: it opened a second time"):
        run.workers[0].receive(PEER, encode_opening(base, 0, []))


def test_what_cannot_be_read_is_refused_in_the_senders_name(
    take: Take,
) -> None:
    with pytest.raises(
        MeanderError, match="worker 1: it sent an unreadable frame: a frame of a peer"
    ):
        take([b"X"])


def test_a_coordinator_takes_no_data(start: Start) -> None:
    flow = Flow("f", bins=1)
    keyed = flow.source(ListSource([[]])).key_by(lambda value: value)
    keyed.fold("n", lambda: 0, lambda n, _: (n + 1, n + 1)).sink(ListSink())
    coordinator = start(flow, workers=2).sim.coordinator
    parcel = PartitionHandoff(P0, Rest(0, None), 5, 5, 6)
    with pytest.raises(MeanderError, match="worker 1: it sent data to the coordinator"):
        coordinator.receive(WorkerId(1), encode_data(EDGES[PartitionHandoff], 5, parcel))
    with pytest.raises(MeanderError, match="worker 1: it sent an unreadable frame"):
        coordinator.receive(WorkerId(1), [b"X"])
    with pytest.raises(MeanderError, match="worker 1: it sent the coordinator a frame for workers"):
        coordinator.receive(WorkerId(1), encode_credit(EdgeId(0), 5))


@pytest.mark.parametrize(
    ("manifest", "wrong"),
    [
        (b"", "it reported an unreadable manifest: a record of format 'manifest'"),
        (Manifest("n", Bin(0), 5, ()).to_bytes()[:3], "it reported an unreadable manifest"),
        (Manifest("n", Bin(2), 5, ()).to_bytes(), "it names bin 2, and this flow has"),
        (DELIVERY.manifest.to_bytes(), "it names bin 3, and this flow has"),
        (Manifest("total", Bin(0), 5, ()).to_bytes(), "it names the state of .*'total'"),
    ],
)
def test_a_report_of_layers_that_a_flow_does_not_have_is_refused_in_the_senders_name(
    start: Start, manifest: bytes, wrong: str
) -> None:
    """I4: another worker would be told to fetch them."""
    flow = Flow("f", bins=1)
    keyed = flow.source(ListSource([[]])).key_by(lambda value: value)
    keyed.fold("n", lambda: 0, lambda n, _: (n + 1, n + 1)).sink(ListSink())
    coordinator = start(flow, workers=2).sim.coordinator
    said = BinPreCopied(1, "n", Bin(0), manifest)
    with pytest.raises(MeanderError, match=f"worker 1: {wrong}"):
        coordinator.report(PEER, said)


def test_a_message_behind_the_frontier_ends_the_flow(start: Start) -> None:
    """I1: should the protocol ever be broken, it is said and not computed with."""
    flow = Flow("f", bins=1)
    keyed = flow.source(ListSource([[(5, "a")]])).key_by(lambda value: value)
    keyed.fold("n", lambda: 0, lambda n, _: (n + 1, n + 1)).sink(ListSink())
    run = start(flow, workers=2)
    run.run()
    moves = Moves("m1", 5, WorkerId(1), (Bin(0),))
    with pytest.raises(MeanderError, match=r"time 5 behind the frontier \(I1\)"):
        run.workers[0].receive(COORDINATOR, encode_data(EDGES[Moves], 5, moves))
