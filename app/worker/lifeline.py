"""The lifeline of a worker: a thread beside its loop reports that the process lives.

Guarantees that a worker counts as alive while its process runs, however long a function of the flow
takes. The thread sends reports to the registration server meanwhile. Where a function blocks all of
Python, ZeroMQ's own thread keeps the connection open. A suspended process loses it within a lease.
Cost: a thread, a connection, and a message in each direction per heartbeat.
"""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

import zmq

from meander.app.protocol.messages import REPLY, Alive, HeartbeatAck
from meander.app.protocol.registration import LaunchToken, drop_when_silent
from meander.connectors.links.links import CurveKeys


class Lifeline:
    """A connection of a worker to the registration server, for one thread."""

    def __init__(self, token: LaunchToken, heartbeat_timeout: float) -> None:
        self._token, keys = token.token, CurveKeys.generate()
        self._context = zmq.Context()
        self._dealer = self._context.socket(zmq.DEALER)
        self._dealer.curve_publickey, self._dealer.curve_secretkey = keys.public, keys.secret
        self._dealer.curve_serverkey = token.public
        drop_when_silent(self._dealer, heartbeat_timeout)
        # A report that waits for a connection would be out of date.
        self._dealer.immediate, self._dealer.sndhwm = True, 1
        self._dealer.connect(token.address)

    def report(self, operator: str, seconds: float) -> bool:
        """Report that the worker lives, and the operator that blocks its loop, if one does.

        Waits for `seconds`; returns whether an answer came.
        """
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
