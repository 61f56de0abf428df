"""Strangers get nowhere, a member's garbage ends the execution, and who does not read is waited
for: on real sockets, with bytes that no member of ours would send."""

from __future__ import annotations

import logging
import random
import re
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import zmq

from meander.connectors.links.links import CurveKeys, CurveLinks, LinkBroken, Peer
from meander.dataflow.control.command import MoveBins
from meander.dataflow.simulation.in_memory import ListSink
from meander.state.keys.ids import COORDINATOR, Bin, WorkerId
from tests.support.kafka.brokers import Broker
from tests.support.kafka.topics import PATIENCE
from tests.support.links.linked_flow import LinkedFlow, counting_flow
from tests.support.links.members import DEADLINE, A, B, raw_dealer, receive_for_ever, until
from tests.support.links.pair import Pair
from tests.support.process.flow_process import flow_folder, lines, meander
from tests.support.sim.manual_flow import ManualSource

ENGINE, APP = 0, 1
Context = zmq.Context[zmq.Socket[bytes]]
GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x01CURVE" + bytes(15) + b"\0" + bytes(31)
"""How a peer of ours begins to speak: ZMTP 3.1, mechanism CURVE, as a client."""


def head(channel: int, sequence: int) -> bytes:
    """Of a message of one part."""
    return struct.pack("<BQ", channel, sequence) + bytes([1] * (channel == ENGINE))


@pytest.fixture
def context() -> Iterator[Context]:
    opened: Context = zmq.Context()
    # A refused stranger reconnects with its messages, and a context waits for what a socket that
    # has been forgotten still sends.
    opened.linger = 0
    yield opened
    opened.destroy(linger=0)


@pytest.fixture
def pair() -> Iterator[Pair]:
    opened = Pair()
    yield opened
    opened.close()


@pytest.fixture
def member(context: Context) -> Iterator[tuple[CurveLinks, zmq.Socket[bytes]]]:
    """B, and a connection that is A by its key and keeps to no rule beyond that."""
    b, keys = CurveLinks(B, CurveKeys.generate(), max_frame=4096), CurveKeys.generate()
    b.admit([Peer(A, "unused", keys.public)])
    dealer = raw_dealer(context, b, keys)
    dealer.connect(b.address)
    yield b, dealer
    b.detach()
    b.close(linger=0)


# -- strangers


Request = Callable[[Context, CurveLinks], zmq.Socket[bytes]]


def _with_another_key(context: Context, to: CurveLinks) -> zmq.Socket[bytes]:
    return raw_dealer(context, to, CurveKeys.generate())


def _for_another_server(context: Context, to: CurveLinks) -> zmq.Socket[bytes]:
    dealer = raw_dealer(context, to, CurveKeys.generate())
    dealer.curve_serverkey = CurveKeys.generate().public
    return dealer


def _without_a_key(context: Context, _: CurveLinks) -> zmq.Socket[bytes]:
    return context.socket(zmq.DEALER)


def _with_a_password(context: Context, _: CurveLinks) -> zmq.Socket[bytes]:
    dealer = context.socket(zmq.DEALER)
    dealer.plain_username, dealer.plain_password = b"worker", b"0"
    return dealer


@pytest.mark.parametrize(
    "knock", [_with_another_key, _for_another_server, _without_a_key, _with_a_password]
)
def test_a_stranger_gets_nothing_in_and_leaves_a_line_in_the_log(
    pair: Pair,
    context: Context,
    knock: Request,
    caplog: pytest.LogCaptureFixture,
) -> None:
    stranger = knock(context, pair.b)
    gone = stranger.get_monitor_socket(zmq.Event.DISCONNECTED | zmq.Event.HANDSHAKE_FAILED_AUTH)
    come_and_speak(stranger, pair.b)
    assert gone.poll(int(DEADLINE * 1000)), "it is sent away"
    pair.nothing_has_come_but(b"genuine")
    until(
        pair.b, lambda: (pair.b.receive(), 'connection_refused member="worker 1"' in caplog.text)[1]
    )
    assert not stranger.poll(0), "nothing is told to it"


@pytest.mark.parametrize(
    "bytes_sent",
    [
        b"GET / HTTP/1.1\r\nHost: here\r\n\r\n" * 4,
        random.Random(1).randbytes(1 << 20),
        bytes(1000),
        GREETING + b"\x06" + (1 << 62).to_bytes(8, "big") + bytes(1000),
        GREETING + b"\x04\x05READY" + bytes(200),
        GREETING + b"\x00\x05hello" * 10,
    ],
    ids=["http", "noise", "zeros", "a command without end", "no hello", "a message at once"],
)
def test_bytes_that_are_no_handshake_are_cut_off(
    pair: Pair, bytes_sent: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert cut_off(pair.b.address, bytes_sent)
        pair.nothing_has_come_but(b"genuine")
        until(pair.b, lambda: (pair.b.receive(), "connection_refused" in caplog.text)[1])


def test_recorded_frames_of_a_member_are_of_no_use_to_a_listener(pair: Pair) -> None:
    pair.nothing_has_come_but(b"first")
    assert b"first" not in pair.between.recorded, "it was encrypted"
    assert cut_off(pair.b.address, pair.between.recorded)
    pair.nothing_has_come_but(b"second")


def test_a_handshake_that_stops_half_way_delays_no_member(pair: Pair) -> None:
    host, port = pair.b.address.removeprefix("tcp://").rsplit(":", 1)
    with socket.create_connection((host, int(port))) as stalled:
        stalled.sendall(GREETING)
        pair.nothing_has_come_but(b"genuine")


def test_a_hundred_strangers_at_once_change_nothing(pair: Pair, context: Context) -> None:
    strangers = [_with_another_key(context, pair.b) for _ in range(100)]
    refused = [s.get_monitor_socket(zmq.Event.HANDSHAKE_FAILED_AUTH) for s in strangers]
    for stranger in strangers:
        come_and_speak(stranger, pair.b)
    assert all(monitor.poll(int(DEADLINE * 1000)) for monitor in refused)
    pair.nothing_has_come_but(b"genuine")


def come_and_speak(stranger: zmq.Socket[bytes], to: CurveLinks) -> None:
    stranger.connect(to.address)
    for channel in (ENGINE, APP):
        with suppress(zmq.Again):  # it may have been sent away already
            stranger.send_multipart([head(channel, 0), b"I am worker 0"], zmq.NOBLOCK)


def cut_off(address: str, said: bytes) -> bool:
    """Whether a connection on which that is said is ended by the other side."""
    host, port = address.removeprefix("tcp://").rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=DEADLINE) as stranger:
        try:
            stranger.sendall(said)
            while stranger.recv(4096):
                pass
        except (ConnectionResetError, BrokenPipeError):
            return True
        return True


# -- members


@pytest.mark.parametrize(
    ("frame", "says"),
    [
        (
            [head(ENGINE, 1), b"x" * 5000],
            "sent an invalid frame or one above the bound of 4,096 bytes",
        ),
        ([b"x" * 5000], "sent an invalid frame or one above the bound of 4,096 bytes"),
        (
            [head(ENGINE, 1)[:-1] + b"\5", *[b"x" * 1000] * 5],
            "a frame of 5,000 bytes arrived, more than the bound of 4,096 bytes",
        ),
        ([head(ENGINE, 1)], "without a header"),
        ([head(ENGINE, 1)[:-2], b"x"], "without a header"),
        ([head(ENGINE, 1), b"two", b"parts"], "unknown kind"),
        ([head(ENGINE, 1) + b"\0", b"x"], "unknown kind"),
        ([head(ENGINE, 1) + b"\1", b"x"], "unknown kind"),
        ([b"", b"x"], "without a header"),
        ([head(APP, 1), b"two", b"parts"], "unknown kind"),
        ([head(255, 1), b"x"], "unknown kind 255"),
        ([head(ENGINE, 0), b"x"], "frame 0 arrived where 1 was expected"),
        ([head(ENGINE, (1 << 64) - 1), b"x"], "arrived where 1 was expected"),
    ],
)
def test_a_members_garbage_ends_the_execution_and_names_it(
    member: tuple[CurveLinks, zmq.Socket[bytes]], frame: list[bytes], says: str
) -> None:
    b, dealer = member
    dealer.send_multipart([head(ENGINE, 0), b"good"])
    assert until(b, b.receive) == [(A, [b"good"])]
    dealer.send_multipart(frame)
    with pytest.raises(LinkBroken, match=f"the link to worker 0: .*{says}") as broken:
        receive_for_ever(b)
    assert broken.value.peer == A
    with pytest.raises(LinkBroken):
        b.receive_messages()


def test_a_first_message_beyond_the_bound_is_cut_off_and_the_log_says_the_bound(
    member: tuple[CurveLinks, zmq.Socket[bytes]], caplog: pytest.LogCaptureFixture
) -> None:
    b, dealer = member
    dealer.send_multipart([head(ENGINE, 0), b"x" * 5000])
    said = 'or its first message is too long" bound=4096'
    until(b, lambda: (b.receive(), said in caplog.text)[1])


@pytest.mark.parametrize("seed", range(20))
def test_a_random_multipart_of_a_member_never_reaches_the_application(
    member: tuple[CurveLinks, zmq.Socket[bytes]], seed: int
) -> None:
    b, dealer = member
    rng = random.Random(seed)
    dealer.send_multipart([rng.randbytes(rng.choice((0, 8, 9, 9, 10, 99))), b"x"])
    with pytest.raises(LinkBroken, match="the link to worker 0: "):
        receive_for_ever(b)
    with pytest.raises(LinkBroken):
        b.receive_messages()


def test_a_byte_changed_on_the_way_ends_the_execution(pair: Pair) -> None:
    pair.nothing_has_come_but(b"first")
    pair.between.meddle = lambda data: data[:-1] + bytes([data[-1] ^ 1])
    pair.a.send(B, [b"second"])
    pair.a.flush()
    with pytest.raises(LinkBroken, match="the link to worker 1: the connection was lost"):
        receive_for_ever(pair.a)
    with pytest.raises(LinkBroken, match="the link to worker 0: the connection was lost"):
        receive_for_ever(pair.b)


def test_a_network_that_swallows_everything_is_noticed() -> None:
    pair = Pair(silence=0.9)
    pair.nothing_has_come_but(b"first")
    pair.between.silent = True
    pair.a.send(B, [b"lost"])
    pair.a.flush()
    with pytest.raises(LinkBroken, match="the link to worker 1: the connection was lost"):
        receive_for_ever(pair.a)
    assert list(pair.b.receive()) == []
    pair.close()


@pytest.mark.parametrize(
    ("address", "key"),
    [
        ("tcp://:", b"k" * 40),
        ("tcp://127.0.0.1:9", b"\0" * 40),
    ],
)
def test_a_member_that_lists_no_address_or_key_is_named(address: str, key: bytes) -> None:
    a = CurveLinks(A, CurveKeys.generate())
    with pytest.raises(LinkBroken, match="the link to worker 1: its address or key is invalid"):
        a.connect([Peer(B, address, key)])
    a.detach()
    a.close(linger=0)


# -- whole flows


def test_a_member_that_does_not_read_stops_only_its_sender_within_its_credit() -> None:
    """I6, I7: data waits at its source; progress and messages still pass; and then all goes on."""
    source, sink, bound, credit, message = ManualSource(), ListSink(), 100_000, 2_000, 1_000
    stuck, free = WorkerId(1), WorkerId(0)
    with LinkedFlow(counting_flow(source, sink, max_inflight=bound, link_credit=credit)) as run:
        run.until(lambda: run.coordinator.progress.ready)
        for ms in range(3000):
            source.give(0, (1000 + ms, ms % 64))
        worker = run.workers[0]
        run.until(lambda: source.feeds[0].paused, without=stuck)
        rest = len(source.feeds[0].chunks)
        links, heard = run.links, 0
        for n in range(200):
            run.turn(without=stuck)
            assert worker.inflight <= 2 * bound
            assert credit <= worker._credit.used(stuck) <= credit + message
            links[COORDINATOR].send_message(free, b"%d" % n)
            links[COORDINATOR].send_message(stuck, b"%d" % n)
            heard += len(links[free].receive_messages())
        assert rest > 500 and len(source.feeds[0].chunks) == rest, "it reads nothing any more"
        run.until(lambda: bool(links[free].receive_messages()) or heard == 200, without=stuck)
        until(links[stuck], links[stuck].receive_messages)
        forsworn = run.coordinator.closed_before
        run.coordinator.submit(MoveBins("m", (Bin(0),), free))
        run.until(lambda: routed(run, free), without=stuck)
        assert run.coordinator.closed_before != forsworn, "progress passes"
        source.end()
        run.until(lambda: run.done)
    assert len(sink.results) == 3000


def routed(run: LinkedFlow, worker: WorkerId) -> bool:
    """Whether a worker has been told of a move."""
    return bool(run.workers[worker].parts.operators.routing._changes)


EVIL = """
import gc

from meander.connectors.links.links import CurveLinks


def count(state, word):
    gc.unfreeze()
    links = next(thing for thing in gc.get_objects() if isinstance(thing, CurveLinks))
    if links.me == 1:
        {deed}
    return state + 1, {{"word": word, "count": state + 1}}


def say(line):
    return None
"""
DEEDS = {
    "a frame that means nothing": (
        'links.send(0, [b"D garbage"])',
        r"worker 0: worker 1: it sent an unreadable frame: a frame of a peer: it cannot be read",
    ),
    "no message": (
        'links.send_message(-1, b"garbage")',
        r"the link to worker 1: it sent a message that the driver does not know",
    ),
}


@pytest.mark.parametrize("deed", DEEDS)
def test_a_workers_garbage_ends_its_flow_with_a_sentence_that_names_it(
    broker: Broker, prefix: str, tmp_path: Path, deed: str
) -> None:
    does, says = DEEDS[deed]
    lines(broker.bootstrap, prefix, [f"{n} to be or not to be" for n in range(40)])
    module = flow_folder(tmp_path, prefix)
    (tmp_path / "counting.py").write_text(EVIL.format(deed=does))
    words = ["run", str(module), "--prefix", prefix, "--startup-timeout", str(PATIENCE)]
    words += ["--restart-attempts", "0"]
    with meander(tmp_path, broker.bootstrap, *words) as process:
        assert process.exit_code() == 1
        assert re.search(says, process.said.splitlines()[-1]), process.said
        process.until_gone()
