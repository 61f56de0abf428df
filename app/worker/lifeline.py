"""A worker's sign of life, which a thread beside its loop gives.

Guarantees that a worker counts as alive while its process is, however long a function of the flow
takes: the thread speaks and is answered at the coordinator's door meanwhile, and where a function
keeps Python to itself, ZeroMQ's own thread keeps the connection up. A process that is stopped
loses it within a lease. Cost: a thread, a connection, and a message each way per beat.
"""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

import zmq

from meander.app.protocol.messages import REPLY, Alive, HeartbeatAck
from meander.app.protocol.registration import LaunchToken, drop_when_silent
from meander.connectors.links.links import Keys


class Lifeline:
    """A worker's end; of one thread."""

    def __init__(self, ticket: LaunchToken, heartbeat_timeout: float) -> None:
        self._token, keys = ticket.token, Keys.fresh()
        self._context = zmq.Context()
        self._dealer = self._context.socket(zmq.DEALER)
        self._dealer.curve_publickey, self._dealer.curve_secretkey = keys.public, keys.secret
        self._dealer.curve_serverkey = ticket.public
        drop_when_silent(self._dealer, heartbeat_timeout)
        # What is said while nobody answers is out of date when somebody does.
        self._dealer.immediate, self._dealer.sndhwm = True, 1
        self._dealer.connect(ticket.address)

    def speak(self, operator: str, seconds: float) -> bool:
        """Say that the worker lives, and which operator keeps its loop, if one does; then wait for
        `seconds`. Whether an answer came."""
        deadline, answered = time.monotonic() + seconds, False
        try:
            self._dealer.send(Alive(token=self._token, operator=operator).to_bytes(), zmq.NOBLOCK)
        except zmq.Again:
            time.sleep(seconds)
            return False
        while self._dealer.poll(max(0, int((deadline - time.monotonic()) * 1000))):
            answered |= isinstance(REPLY.read(self._dealer.recv()), HeartbeatAck)
        return answered

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._context.destroy(linger=0)
