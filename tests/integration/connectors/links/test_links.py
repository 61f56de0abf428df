"""Links between members: order, refusal of strangers, and gaps that end the flow (I7).

Peers run in processes of their own where that matters (order, death), else in this one.
"""

from __future__ import annotations

import logging
import os
import random
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from meander.connectors.links.links import CurveKeys, CurveLinks, LinkBroken, Peer
from meander.schemas.errors import MeanderError
from meander.state.keys.ids import COORDINATOR, WorkerId
from tests.support.links.members import DEADLINE, A, B, peer_of, raw_dealer, receive_for_ever, until

ROOT = Path(__file__).parents[4]

ECHO = """
import sys
from meander.connectors.links.links import CurveKeys, CurveLinks, Peer
from meander.state.keys.ids import WorkerId

links = CurveLinks(WorkerId(1), CurveKeys.generate())
address, key = sys.stdin.readline().split()
peer = Peer(WorkerId(0), address, key.encode())
links.admit([peer])
print(links.address, links.public.decode(), flush=True)
sys.stdin.readline()
links.connect([peer])
while True:
    for sender, frame in links.receive():
        links.send(sender, frame)
        links.flush()
    links.wait(1.0)
"""


@pytest.fixture
def pair() -> Iterator[tuple[CurveLinks, CurveLinks]]:
    """Two members that know each other."""
    a, b = CurveLinks(A, CurveKeys.generate()), CurveLinks(B, CurveKeys.generate())
    for one, other in ((a, b), (b, a)):
        one.admit([peer_of(other)])
    for one, other in ((a, b), (b, a)):
        one.connect([peer_of(other)])
    yield a, b
    for one in (a, b):
        one.detach()
        one.close(linger=0)


@pytest.fixture
def echo() -> Iterator[tuple[CurveLinks, subprocess.Popen[str]]]:
    """A member and a process that sends it all its frames back."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, "-c", ECHO],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
    ) as process:  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        links = CurveLinks(A, CurveKeys.generate())
        process.stdin.write(f"{links.address} {links.public.decode()}\n")
        process.stdin.flush()
        address, key = process.stdout.readline().split()
        links.admit([Peer(B, address, key.encode())])
        links.connect([Peer(B, address, key.encode())])
        process.stdin.write("go\n")
        process.stdin.flush()
        yield links, process
        links.detach()
        links.close(linger=0)
        process.kill()


def test_every_frame_arrives_once_and_in_order_through_another_process(
    echo: tuple[CurveLinks, subprocess.Popen[str]],
) -> None:
    links, _ = echo
    rng = random.Random(7)
    frames = [
        [rng.randbytes(rng.choice((0, 1, 40, 70_000))) for _ in range(rng.randint(1, 4))]
        for _ in range(500)
    ]
    back: list[list[bytes]] = []
    for frame in frames:
        links.send(B, frame)
        links.flush()
        back += [frame for _, frame in links.receive()]
    while len(back) < len(frames):
        back += [frame for _, frame in until(links, links.receive)]
    assert back == frames


def test_messages_of_the_app_and_frames_of_the_engine_do_not_mix(
    pair: tuple[CurveLinks, CurveLinks],
) -> None:
    a, b = pair
    a.send_message(B, b"roster")
    a.send(B, [b"head", b"body"])
    a.flush()
    a.send_message(B, b"beat")
    frames = until(b, b.receive)
    assert list(frames) == [(A, [b"head", b"body"])]
    messages = list(b.receive_messages())
    while len(messages) < 2:
        messages += until(b, b.receive_messages)
    assert messages == [(A, b"roster"), (A, b"beat")]


def test_waiting_ends_when_another_thread_sets_the_wakeup(
    pair: tuple[CurveLinks, CurveLinks],
) -> None:
    a, _ = pair
    thread = threading.Thread(target=a.wakeup.set)
    started = time.monotonic()
    thread.start()
    a.wait(DEADLINE)
    thread.join()
    assert time.monotonic() - started < DEADLINE


def test_a_stranger_is_refused_and_logged(
    pair: tuple[CurveLinks, CurveLinks], caplog: pytest.LogCaptureFixture
) -> None:
    a, b = pair
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    stranger = raw_dealer(context, b, CurveKeys.generate())
    monitor = stranger.get_monitor_socket(zmq.Event.HANDSHAKE_FAILED_AUTH)
    plain = context.socket(zmq.DEALER)
    plain.linger = 0
    plain_monitor = plain.get_monitor_socket(zmq.Event.DISCONNECTED)
    with caplog.at_level(logging.WARNING):
        for socket in (stranger, plain):
            socket.connect(b.address)
            socket.send_multipart([struct.pack("<BQB", 0, 0, 1), b"I am worker 0"])
        assert monitor.poll(int(DEADLINE * 1000))
        assert plain_monitor.poll(int(DEADLINE * 1000))
    a.send(B, [b"genuine"])
    a.flush()
    assert list(until(b, b.receive)) == [(A, [b"genuine"])]
    assert "connection_refused" in caplog.text
    context.destroy(linger=0)


def test_who_sends_is_read_from_the_key_not_from_the_claim() -> None:
    b, keys = CurveLinks(B, CurveKeys.generate()), CurveKeys.generate()
    b.admit([Peer(WorkerId(3), "unused", keys.public), Peer(COORDINATOR, "unused", b"0" * 40)])
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    dealer = raw_dealer(context, b, keys)
    dealer.routing_id = b"coordinator"
    dealer.connect(b.address)
    dealer.send_multipart([struct.pack("<BQ", 1, 0), b"stop"])
    assert list(until(b, b.receive_messages)) == [(3, b"stop")]
    context.destroy(linger=0)
    b.close(linger=0)


@pytest.mark.parametrize(
    ("frames", "says"),
    [
        ([[struct.pack("<BQB", 0, 1, 1), b"x"]], "frame 1 arrived where 0 was expected"),
        ([[struct.pack("<BQB", 0, 0, 1), b"x"]] * 2, "frame 0 arrived where 1 was expected"),
        ([[struct.pack("<BQ", 7, 0), b"x"]], "unknown kind 7"),
        ([[b"short", b"x"]], "without a header"),
        ([[struct.pack("<BQ", 0, 0)]], "without a header"),
    ],
)
def test_a_gap_a_double_or_a_malformed_frame_ends_the_flow(
    frames: list[list[bytes]], says: str
) -> None:
    b, keys = CurveLinks(B, CurveKeys.generate()), CurveKeys.generate()
    b.admit([Peer(A, "unused", keys.public)])
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    dealer = raw_dealer(context, b, keys)
    dealer.connect(b.address)
    for frame in frames:
        dealer.send_multipart(frame)
    with pytest.raises(LinkBroken, match=says) as caught:
        receive_for_ever(b)
    assert caught.value.peer == A
    context.destroy(linger=0)
    b.close(linger=0)


def test_a_peer_that_connects_again_ends_the_flow() -> None:
    b, keys = CurveLinks(B, CurveKeys.generate()), CurveKeys.generate()
    b.admit([Peer(A, "unused", keys.public)])
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    dealers = [raw_dealer(context, b, keys) for _ in range(2)]
    for dealer in dealers:
        dealer.connect(b.address)
        dealer.send_multipart([struct.pack("<BQB", 0, 0, 1), b"x"])
    assert list(until(b, b.receive)) == [(A, [b"x"])]
    with pytest.raises(LinkBroken, match="frame 0 arrived where 1 was expected"):
        until(b, b.receive)
    context.destroy(linger=0)
    b.close(linger=0)


def test_the_death_of_a_peer_is_noticed(echo: tuple[CurveLinks, subprocess.Popen[str]]) -> None:
    links, process = echo
    links.send(B, [b"alive?"])
    links.flush()
    assert until(links, links.receive)
    process.send_signal(signal.SIGKILL)
    with pytest.raises(LinkBroken, match="the link to worker 1: the connection was lost"):
        until(links, links.receive)
    with pytest.raises(LinkBroken, match="the link to worker 1"):
        links.send_message(B, b"x")


def test_frames_for_a_dead_peer_do_not_keep_a_member_from_closing(
    echo: tuple[CurveLinks, subprocess.Popen[str]],
) -> None:
    links, process = echo
    process.send_signal(signal.SIGSTOP)
    for _ in range(300):
        links.send(B, [b"x" * 65_536])
        links.flush()
    process.kill()
    with pytest.raises(LinkBroken):
        receive_for_ever(links)
    links.detach()
    links.send_message(B, b"bye")
    closer = threading.Thread(target=links.close, daemon=True)
    closer.start()
    closer.join(DEADLINE)
    assert not closer.is_alive()


def test_a_death_after_parting_is_not_an_error(
    echo: tuple[CurveLinks, subprocess.Popen[str]],
) -> None:
    links, process = echo
    links.send(B, [b"alive?"])
    links.flush()
    assert until(links, links.receive)
    links.detach()
    process.kill()
    process.wait()
    links.send(B, [b"into the void"])
    links.flush()
    assert list(links.receive()) == []


def test_a_frame_past_the_bound_is_refused_on_both_sides() -> None:
    a, b = (
        CurveLinks(A, CurveKeys.generate(), max_frame=2000),
        CurveLinks(B, CurveKeys.generate(), max_frame=1000),
    )
    for one, other in ((a, b), (b, a)):
        one.admit([peer_of(other)])
    for one, other in ((a, b), (b, a)):
        one.connect([peer_of(other)])
    with pytest.raises(MeanderError, match="its 2,001 bytes are more than the bound of 2,000"):
        a.send(B, [b"x" * 2001])
    a.send(B, [b"x" * 1000])
    a.flush()
    assert until(b, b.receive) == [(A, [b"x" * 1000])], "what the bound allows, it lets through"
    a.send(B, [b"x" * 1001])
    a.flush()
    with pytest.raises(LinkBroken):
        receive_for_ever(a)
    with pytest.raises(
        LinkBroken, match=r"sent an invalid frame or one above the bound of 1,000 bytes"
    ):
        receive_for_ever(b)
    for one in (a, b):
        one.detach()
        one.close(linger=0)


def test_what_was_sent_before_closing_still_leaves(pair: tuple[CurveLinks, CurveLinks]) -> None:
    a, b = pair
    for number in range(200):
        a.send(B, [number.to_bytes(2, "big"), b"x" * 10_000])
        a.flush()
    b.detach()
    a.close(linger=5.0)
    got: list[bytes] = []
    while len(got) < 200:
        got += [frame[0] for _, frame in until(b, b.receive)]
    assert got == [number.to_bytes(2, "big") for number in range(200)]


@pytest.mark.parametrize("noticed", [True, False])
def test_what_is_for_a_peer_that_is_gone_holds_up_no_close(
    pair: tuple[CurveLinks, CurveLinks], noticed: bool
) -> None:
    a, b = pair
    for _ in range(500):
        a.send(B, [b"x" * 100_000])
        a.flush()
    if not noticed:
        a.detach()
    b.close(linger=0)
    if noticed:
        with pytest.raises(LinkBroken):
            receive_for_ever(a)
        a.detach()
    else:
        (monitor,) = a._monitors
        assert monitor.poll(30_000), "ZeroMQ has seen it"
    closing = threading.Thread(target=a.close, args=(600.0,), daemon=True)
    closing.start()
    closing.join(30.0)
    assert not closing.is_alive()


def test_a_host_that_is_not_ours_is_named() -> None:
    with pytest.raises(MeanderError, match="a link cannot listen there"):
        CurveLinks(A, CurveKeys.generate(), host="203.0.113.7")
