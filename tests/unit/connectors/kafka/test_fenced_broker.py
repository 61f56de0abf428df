"""A broker that its controller has fenced still answers, and its metadata names no broker. A broker
remains so for some milliseconds after a pause, so a scripted peer takes its place here."""

from __future__ import annotations

import contextlib
import socket
import struct
import subprocess
import sys
import threading

import pytest

API_VERSIONS, METADATA = 18, 3
UNKNOWN_TOPIC = 3


def _string(text: bytes) -> bytes:
    return struct.pack(">h", len(text)) + text


def _api_versions() -> bytes:
    """No error; metadata from version 0 to 8, as arrays of compact encoding."""
    keys = [(API_VERSIONS, 0, 3), (METADATA, 0, 8)]
    entries = b"".join(struct.pack(">hhh", *key) + b"\0" for key in keys)
    return struct.pack(">h", 0) + bytes([len(keys) + 1]) + entries + struct.pack(">i", 0) + b"\0"


class FencedBroker:
    """A broker that is fenced once it has answered some requests for metadata."""

    def __init__(self, server: socket.socket, before: int) -> None:
        self._server, self._before = server, before
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def port(self) -> int:
        return int(self._server.getsockname()[1])

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._server.accept()
                threading.Thread(target=self._serve, args=[connection], daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as stream:
            while len(size := stream.read(4)) == 4:
                request = stream.read(*struct.unpack(">i", size))
                key, _, correlation, length = struct.unpack_from(">hhih", request)
                body = request[10 + max(0, length) :]
                answer = _api_versions() if key == API_VERSIONS else self._metadata(body)
                connection.sendall(struct.pack(">ii", 4 + len(answer), correlation) + answer)

    def _metadata(self, body: bytes) -> bytes:
        """Itself as the only broker and the controller, or neither; no topic that is asked for."""
        self._before -= 1
        brokers, controller = struct.pack(">i", 0), -1
        if self._before >= 0:
            address = struct.pack(">i", 1) + _string(b"127.0.0.1") + struct.pack(">i", self.port)
            brokers, controller = struct.pack(">i", 1) + address + _string(b"rack"), 1
        (count,) = struct.unpack_from(">i", body)
        topics, at = b"", 4
        for _ in range(count):
            (length,) = struct.unpack_from(">h", body, at)
            name = body[at + 2 : at + 2 + length]
            at += 2 + length
            topics += struct.pack(">h", UNKNOWN_TOPIC) + _string(name)
            topics += struct.pack(">bii", 0, 0, 0)
        cluster = _string(b"cluster") + struct.pack(">i", controller)
        counted = struct.pack(">i", max(0, count))
        return struct.pack(">i", 0) + brokers + cluster + counted + topics + bytes(4)


@pytest.mark.parametrize("before", range(1, 4))
def test_a_broker_that_gets_fenced_does_not_end_the_process(before: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{FencedBroker(server, before).port}"
        code = (
            "from meander.connectors.kafka.client import admin\n"
            f"client = admin({{'bootstrap.servers': {address!r}}})\n"
            "print('answered')"
        )
        done = subprocess.run(
            [sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=60
        )
        server.shutdown(socket.SHUT_RDWR)
    assert (done.returncode, done.stdout) == (0, "answered\n"), done.stderr
