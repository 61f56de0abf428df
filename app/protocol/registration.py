"""How workers find each other: the coordinator's door.

A worker comes with its launch token, good for one time, and a key pair made in its own process; it
gets the roster, admits everybody, says so, and once all have is told to connect; who comes once the
flow runs is brought in one by one (`joining`). Whoever comes with another token, a used one,
or other versions than the driver's is turned away with a sentence.
The door's public key travels with the task, so who has not been given one cannot knock at all.
A worker that works says there that its process lives (`app.worker.lifeline`).
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
    KNOCK,
    REPLY,
    Alive,
    Go,
    HeartbeatAck,
    MemberInfo,
    MemberList,
    Ready,
    Register,
    Rejection,
    Reply,
)
from meander.connectors.links.links import CurveLinks, Keys, Peer, member_name
from meander.schemas.errors import MeanderError, SetupError
from meander.schemas.log_lines import LineLogger
from meander.state.keys.ids import COORDINATOR, WorkerId

log = LineLogger(__name__)

PACKAGES = (
    "confluent-kafka", "msgpack", "msgspec", "numpy", "pyarrow", "pyzmq", "rocksdict", "xxhash",
)  # fmt: skip
"""Whose versions must be the same on all members: they decide what is on the wire and on disk."""
ROOMS = ("schemas", "state", "dataflow", "connectors")
"""Whose source must be the same, for the same reason; what is in `app` checks its messages."""
MAX_KNOCK = 64 * 1024


@cache
def versions() -> dict[str, str]:
    """What this process runs: Python, Meander (by a digest of its source) and `PACKAGES`."""
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
    """What a worker has other than the driver, in words; '' when they agree.

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
    """What a worker needs to come to the door."""

    token: bytes = field(repr=False)
    address: str
    public: bytes


@dataclass(slots=True)
class Registration:
    """A worker that has registered."""

    worker: WorkerId
    register: Register
    route: bytes
    ready: bool = False
    inside: bool = False
    alive: float = 0.0
    """When its process last said that it lives."""
    operator: str = ""
    """The one whose turn kept its loop then."""
    line: int | None = None
    """The connection on which it does so, while that is up."""

    @property
    def peer(self) -> Peer:
        """As the others reach it."""
        return Peer(self.worker, self.register.address, self.register.public)


def drop_when_silent(socket: zmq.Socket[bytes], seconds: float) -> None:
    """Have a socket drop each connection whose other process stays silent for `seconds`."""
    socket.heartbeat_ivl = int(seconds * 1000 / 5)
    socket.heartbeat_timeout = int(seconds * 1000)


class RegistrationServer:
    """The coordinator's side; `poll` never blocks. `heartbeat_timeout` is in seconds."""

    def __init__(self, host: str, links: CurveLinks, heartbeat_timeout: float) -> None:
        self._links = links
        self._keys = Keys.fresh()
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.curve_server = True
        self._socket.curve_secretkey = self._keys.secret
        self._socket.maxmsgsize = MAX_KNOCK
        # The TTL of a worker's ping does not do: ZeroMQ forgets it as soon as a message follows.
        drop_when_silent(self._socket, heartbeat_timeout)
        events = zmq.Event.ACCEPTED | zmq.Event.DISCONNECTED
        self._events = self._socket.get_monitor_socket(events)
        self._lines = set[int]()
        """The connections that are up."""
        self._socket.bind(f"tcp://{host}:*")
        self._address = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self._tokens: dict[bytes, WorkerId] = {}
        self.guests: dict[WorkerId, Registration] = {}
        self.open = False
        """Whether all have been told to connect."""
        self._unknown = "its launch token is unknown"
        """What those are told who have none that is good."""

    def expect(self, worker: WorkerId) -> LaunchToken:
        """A token for a worker that is about to be launched."""
        token = secrets.token_bytes(32)
        self._tokens[token] = worker
        return LaunchToken(token, self._address, self._keys.public)

    def poll(self) -> None:
        """Answer whoever has come. Raises SetupError when a worker's versions differ."""
        while self._socket.poll(0):
            route, *parts = self._socket.recv_multipart(copy=False)
            try:
                knock = KNOCK.read(b"".join(part.bytes for part in parts))
            except ValueError:
                log.warning("request_rejected", reason="it is malformed")
                continue
            if isinstance(knock, Alive):
                self._hear(route, knock)
            else:
                self._answer(route.bytes, knock)
        self._look_at_lines()

    def lives(self, worker: WorkerId, heartbeat_timeout: float) -> bool:
        """Whether the process of a worker that works is known to live."""
        guest = self.guests.get(worker)
        if guest is None:
            return False
        return guest.line is not None or time.monotonic() - guest.alive < heartbeat_timeout

    def alive(self, worker: WorkerId) -> float:
        """When a worker's process last said that it lives, by this machine's clock."""
        guest = self.guests.get(worker)
        return 0.0 if guest is None else guest.alive

    def _hear(self, route: zmq.Frame, knock: Alive) -> None:
        worker = self._tokens.get(knock.token)
        if worker is None or worker not in self.guests:
            return  # the flow has given it up: without an answer its process ends
        # What is still to be told of a connection of this number is of one before.
        self._look_at_lines()
        guest, line = self.guests[worker], int(route.get(zmq.SRCFD))
        guest.alive, guest.operator = time.monotonic(), knock.operator
        # A word may be read after its connection has ended, and its number may be another's by now.
        self._hang_up(line)
        guest.line = line if line in self._lines else None
        self._reply(route.bytes, HeartbeatAck())

    def _look_at_lines(self) -> None:
        while self._events.poll(0):
            told = recv_monitor_message(self._events)
            line = int(told["value"])
            self._hang_up(line)
            if told["event"] == zmq.Event.ACCEPTED:
                self._lines.add(line)
            else:
                self._lines.discard(line)

    def _hang_up(self, line: int) -> None:
        """A connection is of none of the workers that had it."""
        for guest in self.guests.values():
            if guest.line == line:
                guest.line = None

    def _answer(self, route: bytes, knock: Register | Ready) -> None:
        worker = self._tokens.get(knock.token)
        if worker is None:
            self._turn(route, self._unknown)
        elif isinstance(knock, Ready):
            self.guests[worker].ready = True
            if not self.open and all(self._guest_ready(w) for w in self._tokens.values()):
                self._let_all_in()
        elif worker in self.guests:
            self._turn(route, f"{member_name(worker)} has registered before: a token is used once")
        else:
            self._register(worker, route, knock)

    def _register(self, worker: WorkerId, route: bytes, register: Register) -> None:
        if wrong := differences(versions(), register.versions):
            self._turn(route, wrong)
            if self.open:
                return  # its task says so, and the flow goes on without it
            raise SetupError(
                f"{member_name(worker)} on {register.host}", wrong,
                "install the same versions on driver and executors, and set PYSPARK_PYTHON there",
            )  # fmt: skip
        self.guests[worker] = Registration(worker, register, route)
        if not self.open and len(self.guests) == len(self._tokens):
            self._links.admit(guest.peer for guest in self.guests.values())
            for guest in self.guests:
                self.introduce(guest, self.guests)

    def introduce(self, worker: WorkerId, members: Iterable[WorkerId]) -> None:
        """Tell one who has registered of all the others: it is to admit them."""
        others = [self.guests[member].peer for member in members if member != worker]
        others.append(Peer(COORDINATOR, self._links.address, self._links.public))
        self._reply(self.guests[worker].route, MemberList(peers=list(map(listed, others))))

    def let_in(self, worker: WorkerId) -> None:
        """All have admitted it, and it them: tell it to connect."""
        guest = self.guests[worker]
        guest.inside = True
        self._reply(guest.route, Go())
        at = guest.register
        log.info("worker_started", worker=worker, process=at.pid, host=at.host)

    def _let_all_in(self) -> None:
        for worker in self.guests:
            self.let_in(worker)
        self._links.connect(guest.peer for guest in self.guests.values())
        self.open = True

    def dismiss(self, worker: WorkerId, reason: str) -> None:
        """Forget one; who has not been let in is sent home."""
        self._tokens = {token: one for token, one in self._tokens.items() if one != worker}
        guest = self.guests.pop(worker, None)
        if guest is not None and not guest.inside:
            self._turn(guest.route, reason)

    def _guest_ready(self, worker: WorkerId) -> bool:
        return worker in self.guests and self.guests[worker].ready

    def _turn(self, route: bytes, reason: str) -> None:
        log.warning("registration_rejected", reason=reason)
        self._reply(route, Rejection(reason=reason))

    def _reply(self, route: bytes, reply: Reply) -> None:
        self._socket.send_multipart([route, reply.to_bytes()])

    def turn_all(self, reason: str) -> None:
        """Send home who has registered and was not let in, and whoever still comes."""
        self._unknown = reason
        self._tokens.clear()
        for guest in self.guests.values():
            if not guest.inside:
                self._turn(guest.route, reason)

    def close(self) -> None:
        """Close; replies under way get a moment to leave."""
        self._context.destroy(linger=500)


def listed(peer: Peer) -> MemberInfo:
    """A member as it is named to others."""
    return MemberInfo(worker=peer.worker, address=peer.address, public=peer.public)


def own_host(door: str) -> str:
    """The address of this machine by which it reaches the door, so that others reach it too.

    >>> own_host("tcp://127.0.0.1:4711")
    '127.0.0.1'
    """
    host, port = door.removeprefix("tcp://").rsplit(":", 1)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, int(port)))
        return str(probe.getsockname()[0])


def join(ticket: LaunchToken, keys: Keys, links: CurveLinks, startup_timeout: float) -> None:
    """A worker's side: come to the door, and return once the links to all others are open.

    Raises MeanderError when it is turned away, or nobody answers for `startup_timeout` seconds.
    """
    context = zmq.Context()
    dealer = context.socket(zmq.DEALER)
    try:
        dealer.curve_publickey, dealer.curve_secretkey = keys.public, keys.secret
        dealer.curve_serverkey = ticket.public
        dealer.connect(ticket.address)
        register = Register(
            token=ticket.token, address=links.address, public=links.public,
            pid=os.getpid(), host=socket.gethostname(), versions=versions(),
        )  # fmt: skip
        dealer.send(register.to_bytes())
        peers: list[Peer] = []
        for reply in _replies(dealer, time.monotonic() + startup_timeout):
            match reply:
                case Rejection(reason=reason):
                    raise MeanderError(member_name(links.me), f"it is turned away: {reason}")
                case MemberList(peers=listed):
                    peers = [Peer(WorkerId(p.worker), p.address, p.public) for p in listed]
                    links.admit(peers)
                    dealer.send(Ready(token=ticket.token).to_bytes())
                case Go():
                    links.connect(peers)
                    return
                case HeartbeatAck():
                    pass
    finally:
        context.destroy(linger=0)


def _replies(dealer: zmq.Socket[bytes], deadline: float) -> Iterator[Reply]:
    while dealer.poll(max(0, int((deadline - time.monotonic()) * 1000))):
        yield REPLY.read(dealer.recv())
    raise MeanderError("the coordinator", "it does not answer at its door")
