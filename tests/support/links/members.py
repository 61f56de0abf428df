"""Two members of a flow, and what they receive on their links."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import zmq

from meander.connectors.links.links import CurveKeys, CurveLinks, Peer
from meander.state.keys.ids import WorkerId

A, B = WorkerId(0), WorkerId(1)
DEADLINE = 60.0
T = TypeVar("T")


def peer_of(links: CurveLinks) -> Peer:
    return Peer(links.me, links.address, links.public)


def until(links: CurveLinks, look: Callable[[], T]) -> T:
    """What `look` answers as soon as that is true."""
    deadline = time.monotonic() + DEADLINE
    while not (found := look()):
        assert time.monotonic() < deadline, "nothing came"
        links.wait(0.1)
    return found


def receive_for_ever(links: CurveLinks) -> None:
    """Take frames until that raises."""
    while True:
        until(links, links.receive)


def raw_dealer(
    context: zmq.Context[zmq.Socket[bytes]], to: CurveLinks, keys: CurveKeys
) -> zmq.Socket[bytes]:
    """A client that speaks CURVE but none of the rules above it."""
    dealer = context.socket(zmq.DEALER)
    dealer.linger = 0
    dealer.curve_publickey, dealer.curve_secretkey = keys.public, keys.secret
    dealer.curve_serverkey = to.public
    return dealer
