"""Links between the members of a flow: ZeroMQ with CURVE keys.

Each member binds one ROUTER, which only receives, and opens one DEALER per peer, which only sends.
The handshake refuses a key that is not admitted; the authenticated key names a frame's sender.
Invariant (I7): per peer, frames arrive in order without a gap, or `LinkBroken` is raised. Frames
carry a link sequence, no connection opens twice, and either end notices a close. An invalid frame
of a member breaks its link; the frame of a stranger is logged and dropped. A link is required from
its first engine frame until `release`. Its loss has no effect at other times. Cost: one copy per
frame and side. Queues have no bound in this module; sources limit them.
"""

from __future__ import annotations

import math
import struct
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice

import zmq
from zmq.auth.thread import ThreadAuthenticator
from zmq.utils.monitor import recv_monitor_message

from meander.connectors.kafka.wakeup import LoopWakeup
from meander.dataflow.interfaces import Frame
from meander.dataflow.wire import MAX_FRAME, check_size
from meander.schemas.errors import MeanderError
from meander.schemas.log_lines import LineLogger
from meander.state.keys.ids import WorkerId
from meander.state.keys.ids import member_name as member_name

log = LineLogger(__name__)

_HEADER = struct.Struct("<BQ")
_ENGINE, _MESSAGE = 0, 1
_BATCH = 256
_CHECK_INTERVAL = 0.05
_BROKEN = (
    zmq.Event.DISCONNECTED
    | zmq.Event.CLOSED
    | zmq.Event.HANDSHAKE_FAILED_NO_DETAIL
    | zmq.Event.HANDSHAKE_FAILED_PROTOCOL
    | zmq.Event.HANDSHAKE_FAILED_AUTH
)
_REFUSED = "it proves no key, or its first message is too long"
_INCOMING = zmq.Event.ACCEPTED | zmq.Event.DISCONNECTED


class LinkBroken(MeanderError):
    """An error that ends the execution, as frames from or to a peer may be lost."""

    def __init__(self, peer: WorkerId, cause: str) -> None:
        super().__init__(f"the link to {member_name(peer)}", cause)
        self.peer = peer


@dataclass(frozen=True, slots=True)
class CurveKeys:
    """A CURVE key pair of a member, Z85. The secret never leaves its process."""

    public: bytes
    secret: bytes = field(repr=False)

    @staticmethod
    def generate() -> CurveKeys:
        """Return a new key pair."""
        public, secret = zmq.curve_keypair()
        return CurveKeys(public, secret)


@dataclass(frozen=True, slots=True)
class Peer:
    """A peer that names another member's address and the key that it authenticates with."""

    worker: WorkerId
    address: str
    public: bytes


class CurveLinks:
    """The links that carry engine frames and the app's messages between members; implements
    `Links`.

    `silence` bounds the seconds for which a connected peer's process may fail to answer. All
    members call `admit` with their peers before any of them calls `connect`.
    """

    def __init__(
        self,
        me: WorkerId,
        keys: CurveKeys,
        host: str = "127.0.0.1",
        silence: float = 10.0,
        max_frame: int = MAX_FRAME,
    ) -> None:
        self.me = me
        self.wakeup = LoopWakeup()
        self._keys = keys
        self._silence_ms = int(silence * 1000)
        self._max_frame, self._bound = max_frame, f"the bound of {max_frame:,} bytes"
        self._context = zmq.Context()
        self._admitted: dict[bytes, WorkerId] = {}
        self._authenticator = ThreadAuthenticator(self._context)
        self._authenticator.start()
        self._authenticator.configure_curve_callback("*", self)
        self._dealers: dict[WorkerId, zmq.Socket[bytes]] = {}
        self._monitors: dict[zmq.Socket[bytes], WorkerId] = {}
        self._closed_peers: set[WorkerId] = set()
        """The peers with a closed connection, as far as it is known."""
        self._router = self._socket(zmq.ROUTER)
        self._router.curve_server = True
        self._router.maxmsgsize = max_frame + 33  # CURVE adds 33 bytes to a part
        self._incoming = self._router.get_monitor_socket(_INCOMING)
        try:
            self._router.bind(f"tcp://{host}:*")
        except zmq.ZMQError as error:
            self.close(linger=0)
            raise MeanderError(
                f"host {host!r}",
                f"a link cannot listen there ({error.strerror})",
                "name an address of this machine",
            ) from error
        self.address = self._router.getsockopt_string(zmq.LAST_ENDPOINT)
        self.public = keys.public
        self._poller = zmq.Poller()
        self._poller.register(self._router, zmq.POLLIN)
        self._poller.register(self.wakeup.fileno(), zmq.POLLIN)
        self._poller.register(self._incoming, zmq.POLLIN)
        self._open: set[int] = set()
        self._owners: dict[int, WorkerId] = {}
        self._lost: list[WorkerId] = []
        self._joining: set[WorkerId] = set()
        self._released: set[WorkerId] = set()
        self._queues: dict[WorkerId, list[Frame]] = {}
        self._sent: dict[WorkerId, int] = {}
        self._senders: dict[bytes, WorkerId] = {}
        self._expected: dict[WorkerId, int] = {}
        self._frames: list[tuple[WorkerId, Frame]] = []
        self._messages: list[tuple[WorkerId, bytes]] = []
        self._checked_at = 0.0
        self._detached = False
        self._broken: LinkBroken | None = None

    def callback(self, domain: str, key: bytes) -> bool:
        """Return whether a client with this public key may connect. The ZAP thread calls it."""
        if key in self._admitted and self._admitted[key] not in self._released:
            return True
        log.warning("connection_refused", member=member_name(self.me), reason="its key is unknown")
        return False

    def admit(self, peers: Iterable[Peer]) -> None:
        """Accept connections from these peers."""
        self._admitted.update((peer.public, peer.worker) for peer in peers)

    def connect(self, peers: Iterable[Peer], joining: bool = False) -> None:
        """Open the sending side to peers that have admitted this member. Raise LinkBroken for an
        invalid key or address.

        The link to a `joining` peer is required from the first engine frame to it on.
        """
        for peer in peers:
            if joining:
                self._joining.add(peer.worker)
            dealer = self._socket(zmq.DEALER)
            dealer.reconnect_ivl = -1
            dealer.heartbeat_ivl = self._silence_ms // 3
            dealer.heartbeat_timeout = self._silence_ms
            monitor = dealer.get_monitor_socket(_BROKEN)
            self._monitors[monitor] = peer.worker
            self._poller.register(monitor, zmq.POLLIN)
            self._dealers[peer.worker] = dealer
            self._sent[peer.worker] = 0
            try:
                dealer.curve_serverkey = peer.public
                dealer.connect(peer.address)
            except zmq.ZMQError as error:
                cause = f"its address or key is invalid ({error.strerror})"
                raise LinkBroken(peer.worker, cause) from error

    def release(self, peer: WorkerId) -> None:
        """Release a peer after the last frame in both directions: it may close its link, and no new
        connection is admitted. Later frames to it are dropped."""
        self._released.add(peer)

    @property
    def peers(self) -> Sequence[WorkerId]:
        """Return the peers with a required link."""
        return [peer for peer in self._dealers if self._is_required(peer)]

    def send(self, peer: WorkerId, frame: Frame) -> None:
        """Queue an engine frame for the next `flush`. Raise MeanderError when it exceeds the
        bound."""
        self._joining.discard(peer)
        self._check(peer, frame)
        self._queues.setdefault(peer, []).append(frame)

    def flush(self) -> None:
        """Send the queued frames, one message per peer, as each message costs both ends a system
        call and a wake-up. Raise LinkBroken when a connection is closed."""
        queues, self._queues = self._queues, {}
        for peer, frames in queues.items():
            self._send(peer, _ENGINE, bytes(map(len, frames)), list(chain.from_iterable(frames)))

    def send_message(self, peer: WorkerId, message: bytes) -> None:
        """Send a message of the app behind all queued frames. Raise errors as `send` and `flush`
        do."""
        self._check(peer, [message])
        self.flush()
        self._send(peer, _MESSAGE, b"", [message])

    def receive(self) -> Sequence[tuple[WorkerId, Frame]]:
        """Return the engine frames that have arrived, in order per peer. Raise LinkBroken once all
        earlier frames have been returned."""
        self._drain()
        frames, self._frames = self._frames, []
        if self._broken is not None and not frames:
            raise self._broken
        return frames

    def receive_messages(self) -> Sequence[tuple[WorkerId, bytes]]:
        """Return the app's messages that have arrived. Raise errors as `receive` does."""
        self._drain()
        messages, self._messages = self._messages, []
        if self._broken is not None and not messages:
            raise self._broken
        return messages

    def wait(self, timeout: float) -> None:
        """Sleep until a frame arrives, the wakeup is set, or `timeout` seconds have passed."""
        if not self._frames and not self._messages and self._broken is None:
            ready = dict(self._poller.poll(max(0, math.ceil(timeout * 1000))))
            if self._incoming in ready or not self._monitors.keys().isdisjoint(ready):
                self._checked_at = 0.0
        self.wakeup.clear()

    def detach(self) -> None:
        """Let all peers close their links from now on."""
        if not self._detached:
            for monitor in (self._incoming, *self._monitors):
                self._poller.unregister(monitor)
        self._detached, self._broken = True, None

    def close(self, linger: float = 2.0) -> None:
        """Close the links. Wait at most `linger` seconds until queued frames are sent, except for
        frames to peers with a closed connection."""
        self._authenticator.stop()
        self._closed_peers.update(
            peer for monitor, peer in self._monitors.items() if monitor.poll(0)
        )
        self._monitors.clear()
        for peer in self._closed_peers & self._dealers.keys():
            self._dealers[peer].close(linger=0)
        self._context.destroy(linger=int(linger * 1000))
        self.wakeup.close()

    def _socket(self, kind: int) -> zmq.Socket[bytes]:
        opened = self._context.socket(kind)
        opened.sndhwm = opened.rcvhwm = 0
        # Frames that wait when a connection breaks are useless, and a close would wait for them.
        # Until the close, the linger time of a connection is that of its opening.
        opened.linger = 0
        opened.curve_publickey, opened.curve_secretkey = self._keys.public, self._keys.secret
        return opened

    def _check(self, peer: WorkerId, frame: Frame) -> None:
        if self._broken is not None:
            raise self._broken
        check_size(peer, frame, self._max_frame)

    def _send(self, peer: WorkerId, channel: int, lengths: bytes, parts: Frame) -> None:
        sequence = self._sent[peer]
        if self._try_send(peer, [_HEADER.pack(channel, sequence) + lengths, *parts]):
            self._sent[peer] = sequence + 1
        elif self._is_required(peer) and not self._detached:
            raise LinkBroken(peer, "the connection closed")

    def _try_send(self, peer: WorkerId, parts: Frame) -> bool:
        """Return whether a connection accepted the parts."""
        dealer = self._dealers.get(peer)
        if dealer is None:
            return False  # the link was lost while it was not required
        try:
            dealer.send_multipart(parts, zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def _is_required(self, peer: WorkerId) -> bool:
        """Return whether the loss of a link breaks the execution."""
        return peer not in self._joining and peer not in self._released

    def _drain(self) -> None:
        if self._broken is None:
            self._read_frames()
        if self._broken is None and not self._detached:
            self._check_connections()

    def _read_frames(self) -> None:
        """Read arrived frames, at most a batch, up to the first invalid one."""
        for _ in range(_BATCH):
            try:
                route = self._router.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            sender = self._senders.get(route)
            if sender is None:
                frame = self._router.recv(copy=False)
                sender, header = self._identify(route, frame), frame.bytes
            else:
                header = self._router.recv()
            parts = self._router.recv_multipart() if self._router.rcvmore else []
            if (cause := self._accept(sender, header, parts)) and not self._detached:
                self._broken = LinkBroken(sender, cause)
                return

    def _identify(self, route: bytes, frame: zmq.Frame) -> WorkerId:
        """Return the sender of a connection by its authenticated key."""
        sender = self._admitted[str(frame.get("User-Id")).encode()]
        self._senders[route] = sender
        self._expected.setdefault(sender, 0)
        self._read_incoming()  # pending events of this number concern this connection
        connection = int(frame.get(zmq.SRCFD))
        if connection in self._open:
            self._owners[connection] = sender
        else:
            self._lost.append(sender)
        return sender

    def _accept(self, sender: WorkerId, header: bytes, parts: Frame) -> str:
        """Put one message into its inbox; return the reason why it is invalid, or ''.

        A second connection of one member starts from 0 again, so its first frame is out of order.
        """
        if len(header) < _HEADER.size or not parts:
            return "a frame without a header arrived"
        channel, sequence = _HEADER.unpack_from(header)
        lengths = header[_HEADER.size :]
        if sequence != (due := self._expected[sender]):
            return f"frame {sequence} arrived where {due} was expected"
        self._expected[sender] = due + 1
        if channel == _ENGINE and 0 not in lengths and sum(lengths) == len(parts):
            left = iter(parts)
            frames = [list(islice(left, length)) for length in lengths]
            size = max(sum(map(len, frame)) for frame in frames)
            if size > self._max_frame:
                return f"a frame of {size:,} bytes arrived, more than {self._bound}"
            self._frames.extend((sender, frame) for frame in frames)
        elif channel == _MESSAGE and not lengths and len(parts) == 1:
            self._messages.append((sender, parts[0]))
        else:
            return f"a frame of unknown kind {channel} arrived"
        return ""

    def _check_connections(self) -> None:
        """Read the monitors' events of the connections, at most every 50 ms unless woken."""
        if (now := time.monotonic()) - self._checked_at < _CHECK_INTERVAL:
            return
        self._checked_at = now
        self._read_incoming()
        for monitor, peer in list(self._monitors.items()):
            if monitor.poll(0):
                event = zmq.Event(recv_monitor_message(monitor)["event"])
                if not self._is_required(peer):
                    self._drop_link(peer, monitor)
                    continue
                self._closed_peers.add(peer)
                cause = str(event.name).lower().replace("_", " ")
                self._broken = LinkBroken(peer, f"the connection was lost ({cause})")
                return
        if lost := [peer for peer in self._lost if self._is_required(peer)]:
            # ZeroMQ reports neither the cause nor the length of a part that it refused.
            cause = f"the peer closed it, or sent an invalid frame or one above {self._bound}"
            self._closed_peers.update(lost)
            self._broken = LinkBroken(lost[0], f"the connection was lost ({cause})")

    def _drop_link(self, peer: WorkerId, monitor: zmq.Socket[bytes]) -> None:
        """Close a link that is lost and not required."""
        self._lost.append(peer)  # the link may be required later
        self._poller.unregister(monitor)
        del self._monitors[monitor]
        dealer = self._dealers.pop(peer)
        dealer.disable_monitor()
        dealer.close(linger=0)

    def _read_incoming(self) -> None:
        """Track the connections that peers have opened to this member, each by its number."""
        while self._incoming.poll(0):
            event = recv_monitor_message(self._incoming)
            connection = int(event["value"])
            if event["event"] == zmq.Event.ACCEPTED:
                self._open.add(connection)
                continue
            self._open.discard(connection)
            if connection in self._owners:
                self._lost.append(self._owners.pop(connection))
            else:
                log.warning(
                    "connection_refused",
                    member=member_name(self.me),
                    reason=_REFUSED,
                    bound=self._max_frame,
                    remedy="run one version of Meander on all machines",
                )
