"""A broker counts as gone only where nothing listens, and none is waited for for long."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import pytest

from meander.connectors.kafka import reachability
from meander.connectors.kafka.reachability import expect_reachable
from meander.schemas.errors import SetupError
from tests.support.kafka.topics import PATIENCE

NOBODY = "127.0.0.1:1"


@pytest.fixture
def bound() -> Iterator[socket.socket]:
    """A place that nobody else takes, where nobody listens yet."""
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        yield place


def address(place: socket.socket) -> str:
    return f"127.0.0.1:{place.getsockname()[1]}"


@pytest.mark.parametrize(
    ("bootstrap", "says"),
    [
        (NOBODY, r"at 127.0.0.1:1 \(Connection refused\); start one with meander broker start"),
        (
            "SSL://localhost:1,[::1]:1",
            ".+; start one with meander broker start, or name yours with --",
        ),
        ("no-host.invalid", r"at no-host.invalid \(.+\); start it, or correct bootstrap.servers"),
    ],
)
def test_an_address_without_a_listener_is_reported_with_a_remedy(
    bootstrap: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reachability, "CONNECT_TIMEOUT", 0.2)
    with pytest.raises(SetupError, match=f"Kafka: no broker answers {says}") as refusal:
        expect_reachable({"bootstrap.servers": bootstrap})
    assert "Errno" not in str(refusal.value)


def test_one_that_listens_is_enough_however_slow_it_answers(bound: socket.socket) -> None:
    bound.listen()
    expect_reachable({"bootstrap.servers": f"{NOBODY}, SASL_SSL://{address(bound)}"})


def test_one_that_is_just_starting_is_waited_for(
    bound: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reachability, "CONNECT_TIMEOUT", PATIENCE)
    monkeypatch.setattr(time, "sleep", lambda _: bound.listen())
    expect_reachable({"bootstrap.servers": address(bound)})
