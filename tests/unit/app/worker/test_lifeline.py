"""A worker's sign of life is answered while the flow has the worker, and its connection counts."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from meander.app.protocol.messages import Register
from meander.app.protocol.registration import LaunchToken, Registration, RegistrationServer
from meander.app.worker.lifeline import Lifeline
from meander.connectors.links.links import CurveKeys, CurveLinks
from meander.state.keys.ids import COORDINATOR, WorkerId
from tests.support.kafka.topics import until

ZERO, LOCAL, HEARTBEAT_TIMEOUT = WorkerId(0), "127.0.0.1", 60.0


@pytest.fixture
def door() -> Iterator[RegistrationServer]:
    with (
        closing(CurveLinks(COORDINATOR, CurveKeys.generate(), LOCAL, HEARTBEAT_TIMEOUT)) as links,
        closing(RegistrationServer(LOCAL, links, HEARTBEAT_TIMEOUT)) as opened,
    ):
        yield opened


def registered(door: RegistrationServer) -> LaunchToken:
    """One worker that has come in."""
    ticket = door.expect(ZERO)
    register = Register(
        token=ticket.token, address="tcp://127.0.0.1:1", public=CurveKeys.generate().public, pid=1,
        host="here", versions={},
    )  # fmt: skip
    door.registrations[ZERO] = Registration(ZERO, register, b"")
    return ticket


@contextmanager
def looked_after(door: RegistrationServer) -> Iterator[None]:
    """The driver's loop."""
    over = threading.Event()

    def turn() -> None:
        while not over.wait(0.005):
            door.poll()

    with ThreadPoolExecutor(1) as loop:
        ended = loop.submit(turn)
        try:
            yield
        finally:
            over.set()
            ended.result()


def test_a_worker_counts_as_alive_while_its_connection_stands(door: RegistrationServer) -> None:
    ticket = registered(door)
    assert not door.is_alive(ZERO, HEARTBEAT_TIMEOUT), "nothing was heard of it"
    with looked_after(door), Lifeline(ticket, HEARTBEAT_TIMEOUT) as line:
        until(lambda: line.report("ask", 0.1), "an answer")
        assert (door.is_alive(ZERO, 0.0), door.registrations[ZERO].operator) == (True, "ask")

    def gone() -> bool:
        door.poll()
        return not door.is_alive(ZERO, 0.0)

    until(gone, "its connection is gone")
    assert door.is_alive(ZERO, HEARTBEAT_TIMEOUT), "though it may be back"


SPEAKER = """
import sys
from meander.app.protocol.registration import LaunchToken
from meander.app.worker.lifeline import Lifeline

token, address, public = sys.stdin.read().split()
ticket = LaunchToken(bytes.fromhex(token), address, bytes.fromhex(public))
with Lifeline(ticket, 1.0) as line:
    while True:
        line.report("", 0.02)
"""


def test_a_stopped_process_loses_its_connection_whatever_it_sent_last() -> None:
    """Its last message is hardly ever a ping of ZeroMQ: it speaks ten times as often."""
    with (
        closing(CurveLinks(COORDINATOR, CurveKeys.generate(), LOCAL, 1.0)) as links,
        closing(RegistrationServer(LOCAL, links, 1.0)) as door,
    ):
        ticket = registered(door)
        told = f"{ticket.token.hex()} {ticket.address} {ticket.public.hex()}"
        with subprocess.Popen([sys.executable, "-c", SPEAKER], stdin=subprocess.PIPE) as process:
            assert process.stdin is not None
            process.stdin.write(told.encode())
            process.stdin.close()

            def lives() -> bool:
                door.poll()
                return door.is_alive(ZERO, 0.0)

            until(lives, "it has spoken")
            process.send_signal(signal.SIGSTOP)
            try:
                until(lambda: not lives(), "its connection is gone")
            finally:
                process.kill()


def sockets() -> int:
    """How many this process has open."""
    return sum(one.is_socket() for one in Path("/proc/self/fd").iterdir())


def test_a_word_that_is_read_after_its_connection_has_ended_keeps_no_worker_alive(
    door: RegistrationServer,
) -> None:
    """A driver may stand still while a worker's host goes."""
    ticket, before = registered(door), sockets()
    with Lifeline(ticket, HEARTBEAT_TIMEOUT) as line:
        with looked_after(door):
            until(lambda: line.report("ask", 0.1), "an answer")
        assert not line.report("ask", 0.5), "the driver stands still"
        assert sockets() > before
    until(lambda: sockets() == before, "the connection has ended")
    door.poll()
    assert not door.is_alive(ZERO, 0.0)


def test_who_is_given_up_gets_no_answer(door: RegistrationServer) -> None:
    """I8: so the process ends, however busy its loop is."""
    ticket = registered(door)
    with looked_after(door), Lifeline(ticket, HEARTBEAT_TIMEOUT) as line:
        until(lambda: line.report("", 0.1), "an answer")
        door.reject_all("another execution begins")
        # What it said before may still be answered.
        until(lambda: not line.report("", 0.1), "silence")
        assert not any(line.report("", 0.1) for _ in range(3))
        assert not door.is_alive(WorkerId(1), HEARTBEAT_TIMEOUT)
