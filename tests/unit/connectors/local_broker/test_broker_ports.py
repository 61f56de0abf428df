"""A port that is taken is refused once, not for ever."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from meander.connectors.local_broker import broker
from meander.schemas.errors import SetupError


def test_after_a_refused_port_another_is_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker, "_format", lambda home: None)
    with socket.socket() as taken:
        taken.bind((broker.HOST, 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(SetupError, match="another process listens there"):
            broker._prepare(tmp_path, port)
        assert broker._prepare(tmp_path, None).clients != port
