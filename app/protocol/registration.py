"""Registration: the driver admits each launched worker and names its peers.

A worker sends its launch token, which is valid once, and the public key of a pair that it made
itself. It gets the list of members, admits them, and reports that it is ready. Once all are ready,
each connects. A worker that joins a running flow does so alone (`joining`). The server rejects
unknown and used tokens, and other versions than the driver's, with a sentence. Its public key
travels with the task, so no stranger can send it a request. A working worker also reports here that
its process is alive (`app.worker.lifeline`).
"""

from __future__ import annotations

import os
import platform
import secrets
import socket
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import zmq
from zmq.utils.monitor import recv_monitor_message

from meander.app.protocol.messages import (
    REPLY,
    REQUEST,
    Alive,
    Connect,
    HeartbeatAck,
    MemberInfo,
    MemberList,
    Ready,
    Register,
    Rejection,
    Reply,
)
from meander.app.protocol.placement import own_executor
from meander.connectors.links.links import CurveKeys, CurveLinks, Peer, member_name
from meander.schemas.errors import MeanderError, SetupError
from meander.schemas.log_lines import LineLogger
from meander.state.keys.ids import COORDINATOR, WorkerId

log = LineLogger(__name__)

PACKAGES = (
    "confluent-kafka", "msgpack", "msgspec", "numpy", "pyarrow", "pyzmq", "rocksdict", "xxhash",
)  # fmt: skip
"""Packages whose versions must agree on all members, because they determine encoded bytes."""
ROOMS = ("schemas", "state", "dataflow", "connectors")
"""Packages of Meander whose source must agree. `app` checks the messages that it reads."""
MAX_REQUEST = 64 * 1024
"""The limit of bytes of a request."""


@cache
def versions() -> dict[str, str]:
    """Return the versions of Python, Meander (as a digest of its source) and `PACKAGES`."""
    found = {"Python": ".".join(platform.python_version_tuple()[:2]), "Meander": _digest()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "none"
    return found


def _digest() -> str:
    root = Path(__file__).parents[1]
    digest = sha256()
    for file in sorted(file for room in ROOMS for file in (root / room).rglob("*.py")):
        digest.update(file.relative_to(root).as_posix().encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:12]


def differences(here: dict[str, str], there: dict[str, str]) -> str:
    """Return in words where a worker's versions differ from the driver's; '' where they agree.

    >>> differences({"Python": "3.11", "numpy": "2.4"}, {"Python": "3.12", "numpy": "2.4"})
    'Python is 3.12 there and 3.11 at the driver'
    """
    return ", ".join(
        f"{name} is {there.get(name, 'none')} there and {mine} at the driver"
        for name, mine in here.items()
        if there.get(name) != mine
    )


@dataclass(frozen=True, slots=True)
class LaunchToken:
    """A token with which a worker registers once, and the address and key of the server."""

    token: bytes = field(repr=False)
    address: str
    public: bytes


@dataclass(slots=True)
class Registration:
    """A record of a worker that has registered."""

    worker: WorkerId
    register: Register
    route: bytes
    ready: bool = False
    connecting: bool = False
    """Whether it was told to connect."""
    alive_at: float = 0.0
    """When its process last reported that it is alive."""
    operator: str = ""
    """The operator whose turn blocked its loop then."""
    connection: int | None = None
    """The open connection on which it reports that."""

    @property
    def peer(self) -> Peer:
        """The address and key at which other members reach it."""
        return Peer(self.worker, self.register.address, self.register.public)


def drop_when_silent(socket: zmq.Socket[bytes], seconds: float) -> None:
    """Have a socket drop each connection whose other process stays silent for `seconds`."""
    socket.heartbeat_ivl = int(seconds * 1000 / 5)
    socket.heartbeat_timeout = int(seconds * 1000)


class RegistrationServer:
    """A server at the driver, with which workers register.

    `poll` never blocks. `heartbeat_timeout` is in seconds.
    """

    def __init__(self, host: str, links: CurveLinks, heartbeat_timeout: float) -> None:
        self._links = links
        self._keys = CurveKeys.generate()
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.curve_server = True
        self._socket.curve_secretkey = self._keys.secret
        self._socket.maxmsgsize = MAX_REQUEST
        # The TTL of a worker's ping is no substitute: ZeroMQ drops it as soon as a message follows.
        drop_when_silent(self._socket, heartbeat_timeout)
        events = zmq.Event.ACCEPTED | zmq.Event.DISCONNECTED
        self._events = self._socket.get_monitor_socket(events)
        self._connections = set[int]()
        """The open connections."""
        self._socket.bind(f"tcp://{host}:*")
        self._address = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self._tokens: dict[bytes, WorkerId] = {}
        self._former_tokens: dict[bytes, WorkerId] = {}
        """The tokens of workers that are not expected any more, for the log."""
        self.registrations: dict[WorkerId, Registration] = {}
        self.connected = False
        """Whether all workers of the start have been told to connect."""
        self._invalid = "its launch token is unknown"
        """The reason for which a request without a valid token is rejected."""

    def expect(self, worker: WorkerId) -> LaunchToken:
        """Return a token for a worker that is about to be launched."""
        token = secrets.token_bytes(32)
        self._tokens[token] = worker
        return LaunchToken(token, self._address, self._keys.public)

    def poll(self) -> None:
        """Answer all requests. Raises SetupError where the versions of a worker differ."""
        while self._socket.poll(0):
            route, *parts = self._socket.recv_multipart(copy=False)
            try:
                request = REQUEST.read(b"".join(part.bytes for part in parts))
            except ValueError:
                log.warning("request_rejected", reason="it is malformed")
                continue
            if isinstance(request, Alive):
                self._note_alive(route, request)
            else:
                self._answer(route.bytes, request)
        self._poll_connections()

    def is_alive(self, worker: WorkerId, heartbeat_timeout: float) -> bool:
        """Return whether the process of a working worker is known to live."""
        found = self.registrations.get(worker)
        if found is None:
            return False
        silent = time.monotonic() - found.alive_at
        return found.connection is not None or silent < heartbeat_timeout

    def last_alive(self, worker: WorkerId) -> float:
        """Return when a worker's process last reported that it lives, by this machine's clock."""
        found = self.registrations.get(worker)
        return 0.0 if found is None else found.alive_at

    def _note_alive(self, route: zmq.Frame, request: Alive) -> None:
        worker = self._tokens.get(request.token)
        if worker is None or worker not in self.registrations:
            return  # a removed worker: without an answer its process ends
        # Older events may still name an earlier connection of the same number.
        self._poll_connections()
        found, connection = self.registrations[worker], int(route.get(zmq.SRCFD))
        found.alive_at, found.operator = time.monotonic(), request.operator
        # The connection may have ended, and another worker's may have its number by now.
        self._close_connection(connection)
        found.connection = connection if connection in self._connections else None
        self._reply(route.bytes, HeartbeatAck())

    def _poll_connections(self) -> None:
        while self._events.poll(0):
            event = recv_monitor_message(self._events)
            connection = int(event["value"])
            self._close_connection(connection)
            if event["event"] == zmq.Event.ACCEPTED:
                self._connections.add(connection)
            else:
                self._connections.discard(connection)

    def _close_connection(self, connection: int) -> None:
        """Note that no worker has a connection of this number any more."""
        for found in self.registrations.values():
            if found.connection == connection:
                found.connection = None

    def _answer(self, route: bytes, request: Register | Ready) -> None:
        worker = self._tokens.get(request.token)
        if worker is None:
            self._reject(route, self._invalid, self._former_tokens.get(request.token))
        elif isinstance(request, Ready):
            self.registrations[worker].ready = True
            if not self.connected and all(map(self._is_ready, self._tokens.values())):
                self._let_all_connect()
        elif worker in self.registrations:
            name = member_name(worker)
            self._reject(route, f"{name} has registered before: a token is used once", worker)
        else:
            self._register(worker, route, request)

    def _register(self, worker: WorkerId, route: bytes, register: Register) -> None:
        if wrong := differences(versions(), register.versions):
            self._reject(route, wrong, worker)
            if self.connected:
                return  # its task reports the error, and the flow continues without it
            raise SetupError(
                f"{member_name(worker)} on {register.host}", wrong,
                "install the same versions on driver and executors, and set PYSPARK_PYTHON there",
            )  # fmt: skip
        self.registrations[worker] = Registration(worker, register, route)
        if not self.connected and len(self.registrations) == len(self._tokens):
            self._links.admit(found.peer for found in self.registrations.values())
            for one in self.registrations:
                self.send_members(one, self.registrations)

    def send_members(self, worker: WorkerId, members: Iterable[WorkerId]) -> None:
        """Send a registered worker the list of all other members, which it then admits."""
        others = [self.registrations[member].peer for member in members if member != worker]
        others.append(Peer(COORDINATOR, self._links.address, self._links.public))
        route = self.registrations[worker].route
        self._reply(route, MemberList(peers=list(map(member_info, others))))

    def let_connect(self, worker: WorkerId) -> None:
        """Tell a worker to connect, once it and all members have admitted each other."""
        found = self.registrations[worker]
        found.connecting = True
        self._reply(found.route, Connect())
        at = found.register
        log.info("worker_started", worker=worker, process=at.pid, host=at.host)

    def _let_all_connect(self) -> None:
        for worker in self.registrations:
            self.let_connect(worker)
        self._links.connect(found.peer for found in self.registrations.values())
        self.connected = True

    def remove(self, worker: WorkerId, reason: str) -> None:
        """Remove a worker; reject it with a reason where it was not told to connect yet."""
        self._former_tokens |= {token: one for token, one in self._tokens.items() if one == worker}
        self._tokens = {token: one for token, one in self._tokens.items() if one != worker}
        found = self.registrations.pop(worker, None)
        if found is not None and not found.connecting:
            self._reject(found.route, reason, worker)

    def _is_ready(self, worker: WorkerId) -> bool:
        return worker in self.registrations and self.registrations[worker].ready

    def _reject(self, route: bytes, reason: str, worker: WorkerId | None) -> None:
        named = "unknown" if worker is None else worker
        log.warning("registration_rejected", worker=named, reason=reason)
        self._reply(route, Rejection(reason=reason))

    def _reply(self, route: bytes, reply: Reply) -> None:
        self._socket.send_multipart([route, reply.to_bytes()])

    def reject_all(self, reason: str) -> None:
        """Reject all workers that were not told to connect, and all later requests."""
        self._invalid = reason
        self._former_tokens |= self._tokens
        self._tokens.clear()
        for found in self.registrations.values():
            if not found.connecting:
                self._reject(found.route, reason, found.worker)

    def close(self) -> None:
        """Close the server, after a moment for replies in flight."""
        self._context.destroy(linger=500)


def member_info(peer: Peer) -> MemberInfo:
    """Return the message that names a member to other members."""
    return MemberInfo(worker=peer.worker, address=peer.address, public=peer.public)


def own_host(server: str) -> str:
    """Return the address of this machine on the route to the driver, for other members to use.

    >>> own_host("tcp://127.0.0.1:4711")
    '127.0.0.1'
    """
    host, port = server.removeprefix("tcp://").rsplit(":", 1)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, int(port)))
        return str(probe.getsockname()[0])


def join(token: LaunchToken, keys: CurveKeys, links: CurveLinks, startup_timeout: float) -> None:
    """Register a worker with the driver; return once its links to all members are open.

    Raises MeanderError where the driver rejects it, or is silent for `startup_timeout` seconds.
    """
    context = zmq.Context()
    dealer = context.socket(zmq.DEALER)
    try:
        dealer.curve_publickey, dealer.curve_secretkey = keys.public, keys.secret
        dealer.curve_serverkey = token.public
        dealer.connect(token.address)
        register = Register(
            token=token.token, address=links.address, public=links.public,
            pid=os.getpid(), host=socket.gethostname(), versions=versions(),
            executor=own_executor(),
        )  # fmt: skip
        dealer.send(register.to_bytes())
        peers: list[Peer] = []
        for reply in _replies(dealer, time.monotonic() + startup_timeout):
            match reply:
                case Rejection(reason=reason):
                    raise MeanderError(member_name(links.me), f"the driver rejected it: {reason}")
                case MemberList(peers=members):
                    peers = [Peer(WorkerId(p.worker), p.address, p.public) for p in members]
                    links.admit(peers)
                    dealer.send(Ready(token=token.token).to_bytes())
                case Connect():
                    links.connect(peers)
                    return
                case HeartbeatAck():
                    pass
    finally:
        context.destroy(linger=0)


def _replies(dealer: zmq.Socket[bytes], deadline: float) -> Iterator[Reply]:
    while dealer.poll(max(0, int((deadline - time.monotonic()) * 1000))):
        yield REPLY.read(dealer.recv())
    raise MeanderError("the driver", "it does not answer the registration")
