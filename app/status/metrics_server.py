"""The HTTP server of a driver: metrics for Prometheus, and two probes for a supervisor.

Guarantees that no reader holds up the flow, that the server ends with it, and that it serves one
host alone, by default this machine. Cost: one thread, and one more for each request.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from http import HTTPStatus
from socket import SOCK_STREAM
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, make_wsgi_app

from meander.app.status.metrics import MetricsCollector
from meander.schemas.errors import SetupError

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

HOST = "127.0.0.1"


@contextlib.contextmanager
def serving(
    port: int | None, host: str = HOST, flow: str = "", silence: float = 10.0
) -> Iterator[MetricsCollector]:
    """Serve the figures of a flow while the block lasts; at port 0 on any free port, at None not.

    The flow counts as dead after `silence` seconds without a heartbeat of its driver. Raises
    SetupError where the port is taken, or the host is none of this machine.
    """
    board = MetricsCollector(flow)
    if port is None:
        yield board
        return
    try:
        server = _Server(host, port)
    except OSError as error:
        raise SetupError(
            f"port {port} for metrics",
            f"it cannot be had on {host} ({error.strerror})",
            "name another with --metrics-port, 0 for any free one, or --metrics-host, or give"
            " --no-metrics",
        ) from error
    server.set_app(_app(board, silence))
    thread = threading.Thread(target=server.serve_forever, name="metrics", daemon=True)
    thread.start()
    shown = f"[{host}]" if ":" in host else host
    board.address = f"http://{shown}:{server.server_port}/metrics"
    try:
        yield board
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def alive(board: MetricsCollector, silence: float) -> tuple[HTTPStatus, str]:
    """Return whether the driver attends to its flow: before its first heartbeat it counts as alive,
    because it may wait for the lease of another driver.

    >>> alive(MetricsCollector(), 10.0)
    (<HTTPStatus.OK: 200>, 'the driver starts')
    """
    age = board.age
    if age is None:
        return HTTPStatus.OK, "the driver starts"
    if age > silence:
        return HTTPStatus.SERVICE_UNAVAILABLE, f"no heartbeat of the driver for {age:.0f} s"
    return HTTPStatus.OK, "the driver attends to its flow"


def ready(board: MetricsCollector, silence: float) -> tuple[HTTPStatus, str]:
    """Return whether the flow processes records.

    >>> ready(MetricsCollector(), 10.0)
    (<HTTPStatus.SERVICE_UNAVAILABLE: 503>, 'not all workers run')
    """
    status, reason = alive(board, silence)
    if status == HTTPStatus.OK and not board.ready:
        return HTTPStatus.SERVICE_UNAVAILABLE, "not all workers run"
    return (status, reason) if status != HTTPStatus.OK else (HTTPStatus.OK, "all workers run")


class _Server(ThreadingMixIn, WSGIServer):
    """A server whose requests hold up neither each other nor its end."""

    daemon_threads = True

    def __init__(self, host: str, port: int) -> None:
        """Listen at a name or address. Raises OSError."""
        self.address_family, *_, address = socket.getaddrinfo(host, port, type=SOCK_STREAM)[0]
        super().__init__((str(address[0]), port), _Handler)


class _Handler(WSGIRequestHandler):
    """A handler that logs no request."""

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


def _app(board: MetricsCollector, silence: float) -> WSGIApplication:
    registry = CollectorRegistry()
    registry.register(board)
    metrics: WSGIApplication = make_wsgi_app(registry)
    probes: dict[str, Callable[[MetricsCollector, float], tuple[HTTPStatus, str]]] = {
        "/healthz": alive, "/readyz": ready,
    }  # fmt: skip

    def app(environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        path = str(environ["PATH_INFO"])
        if path == "/metrics":
            return metrics(environ, start)
        status, text = HTTPStatus.NOT_FOUND, "there is /metrics, /healthz and /readyz"
        if path in probes:
            status, text = probes[path](board, silence)
        body = f"{text}\n".encode()
        headers = [
            ("Content-Type", "text/plain; charset=utf-8"),
            ("Content-Length", str(len(body))),
        ]
        start(f"{status.value} {status.phrase}", headers)
        return [body]

    return app
