"""The driver serves metrics and probes while its flow runs, and on the chosen address alone."""

from __future__ import annotations

import urllib.error
import urllib.request

import pytest

from meander.app.status.metrics import MetricsCollector
from meander.app.status.metrics_server import serving
from meander.app.status.observer import StatusSnapshot
from meander.schemas.errors import SetupError
from tests.support.status.heartbeats import ONE, ZERO, read

FIGURES = StatusSnapshot(2, 2, bins={ZERO: 100, ONE: 156})


def fetched(board: MetricsCollector, path: str) -> tuple[int, str]:
    """Return the status and the text of a path of the server."""
    try:
        with urllib.request.urlopen(board.address.replace("/metrics", path)) as answer:
            return answer.status, answer.read().decode().strip()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode().strip()


def test_they_are_served_on_this_machine_alone_while_the_flow_runs() -> None:
    with serving(0) as board:
        board.show(FIGURES, 0, {})
        assert board.address.startswith("http://127.0.0.1:")
        with urllib.request.urlopen(board.address) as answer:
            served = read(answer.read().decode())
        assert served["meander_bins"] == {("0",): 100, ("1",): 156}
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(board.address)


def test_a_port_that_is_taken_is_named() -> None:
    with serving(0) as board:
        port = int(board.address.split(":")[2].split("/")[0])
        with pytest.raises(SetupError, match=f"port {port} for metrics: it cannot be had"):
            serving(port).__enter__()


def test_without_a_port_nothing_is_served() -> None:
    with serving(None) as board:
        assert board.address == ""


def test_metrics_are_served_on_the_host_that_is_named() -> None:
    with serving(0, "127.0.0.2", "counts") as board:
        assert board.address.startswith("http://127.0.0.2:")
        status, metrics = fetched(board, "/metrics")
        assert (status, 'meander_workers{flow="counts"} 0.0' in metrics) == (200, True)
        with pytest.raises(OSError, match="refused"):
            urllib.request.urlopen(board.address.replace("127.0.0.2", "127.0.0.1"))


def test_a_host_of_another_machine_is_named() -> None:
    with pytest.raises(SetupError, match="it cannot be had on 192.0.2.1"):
        serving(0, "192.0.2.1").__enter__()


def test_a_flow_is_ready_once_all_workers_run_and_no_more_while_it_restarts() -> None:
    with serving(0) as board:
        assert fetched(board, "/healthz") == (200, "the driver starts")
        assert fetched(board, "/readyz") == (503, "not all workers run")
        board.show(FIGURES, 0, {})
        assert fetched(board, "/healthz") == (200, "the driver attends to its flow")
        assert fetched(board, "/readyz") == (200, "all workers run")
        board.show(StatusSnapshot(2, 1), 0, {})
        assert fetched(board, "/readyz") == (503, "not all workers run")


def test_a_driver_without_a_heartbeat_is_neither_alive_nor_ready() -> None:
    with serving(0, silence=0.0) as board:
        board.show(FIGURES, 0, {})
        said = "no heartbeat of the driver for 0 s"
        assert fetched(board, "/healthz") == fetched(board, "/readyz") == (503, said)


def test_another_path_is_not_found() -> None:
    with serving(0) as board:
        assert fetched(board, "/") == (404, "there is /metrics, /healthz and /readyz")
