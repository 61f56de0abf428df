"""What lies between two members on a network: a relay that takes its time, loses, listens, or
meddles."""

from __future__ import annotations

import heapq
import random
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count

Meddle = Callable[[bytes], bytes]
_CHUNK = 1 << 16


class Loss:
    """What a network that loses packets looks like over TCP: bytes come cut anywhere, and now and
    then nothing comes for a while, then at once all that was sent meanwhile."""

    def __init__(self, seed: int, *, rate: float = 0.05, longest: float = 0.04) -> None:
        self._rng, self._rate, self._longest = random.Random(seed), rate, longest
        self.stalls = 0

    def pieces(self, data: bytes) -> Iterator[tuple[float, bytes]]:
        """The bytes as they arrive, each with the seconds of the stall before."""
        while data:
            stall = self._rng.random() * self._longest if self._rng.random() < self._rate else 0.0
            self.stalls += stall > 0
            size = int(len(data) ** self._rng.random())
            yield stall, data[:size]
            data = data[size:]


class Relay:
    """Passes bytes on to an address, both ways, each `delay` seconds after they have come, or
    later where some are lost."""

    def __init__(self, target: str, delay: float = 0.0, loss: Loss | None = None) -> None:
        host, port = target.removeprefix("tcp://").rsplit(":", 1)
        self._target, self._delay, self._loss = (host, int(port)), delay, loss
        self.meddle: Meddle = bytes
        """What becomes of bytes on their way to the target."""
        self.silent = False
        """Whether nothing is passed on any more, while all connections stay."""
        self.recorded = b""
        """All that was sent to the target."""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._ends: dict[socket.socket, socket.socket] = {}
        self._inward: set[socket.socket] = set()
        self._due: list[tuple[float, int, socket.socket, bytes]] = []
        self._last: dict[socket.socket, float] = {}
        """When the last bytes so far are due that came from an end."""
        self._numbers, self._over = count(), False
        self._thread = threading.Thread(target=self._run, name="relay")
        self._thread.start()

    def close(self) -> None:
        self._over = True
        self._thread.join()
        for end in (*self._ends, self._listener):
            end.close()
        self._selector.close()

    def _run(self) -> None:
        while not self._over:
            now = time.monotonic()
            while self._due and self._due[0][0] <= now:
                _, _, to, data = heapq.heappop(self._due)
                self._pass_on(to, data)
            nap = min(self._due[0][0] - now, 0.01) if self._due else 0.01
            for key, _ in self._selector.select(max(0.0, nap)):
                if key.fileobj is self._listener:
                    self._accept()
                elif isinstance(key.fileobj, socket.socket):
                    self._read(key.fileobj)

    def _accept(self) -> None:
        near, _ = self._listener.accept()
        far = socket.create_connection(self._target)
        self._ends |= {near: far, far: near}
        self._inward.add(near)
        for end in (near, far):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._selector.register(end, selectors.EVENT_READ)

    def _read(self, end: socket.socket) -> None:
        try:
            data = end.recv(_CHUNK)
        except ConnectionResetError:
            data = b""
        if not data:
            self._selector.unregister(end)
        elif end in self._inward:
            self.recorded += data
            data = self.meddle(data)
        pieces = self._loss.pieces(data) if data and self._loss is not None else [(0.0, data)]
        for stall, piece in pieces:
            due = max(time.monotonic() + self._delay, self._last.get(end, 0.0)) + stall
            self._last[end] = due
            heapq.heappush(self._due, (due, next(self._numbers), self._ends[end], piece))

    def _pass_on(self, to: socket.socket, data: bytes) -> None:
        if self.silent:
            return
        try:
            if data:
                to.sendall(data)
            else:
                to.shutdown(socket.SHUT_WR)
        except (BrokenPipeError, ConnectionResetError, OSError):
            return  # that end is gone; the other one hears of it by its own reading


@contextmanager
def relay(target: str, delay: float = 0.0, loss: Loss | None = None) -> Iterator[Relay]:
    between = Relay(target, delay, loss)
    try:
        yield between
    finally:
        between.close()
