"""What `meander run` prints where no terminal reads: every event, and a heartbeat now and then."""

from __future__ import annotations

import json
import time

import pytest
from rich.console import Console

from meander.app.cli.views.run import EVERY, Watch
from meander.app.common.output import CommandOutput
from meander.app.status.overview import SILENCE
from meander.schemas.status import CheckpointAccepted


def test_one_heartbeat_of_many_is_printed_where_no_terminal_reads(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    with Watch(CommandOutput(Console(), as_json=True), bounded=False) as watch:
        for second in range(int(3 * EVERY)):
            now = 1000.0 + second
            watch.show(SILENCE)
            if second == 5:
                watch.show(CheckpointAccepted(id="c", offset=3))
    printed = [json.loads(line)["type"] for line in capsys.readouterr().out.splitlines()]
    assert printed == ["heartbeat", "checkpoint_accepted", "heartbeat", "heartbeat"]
