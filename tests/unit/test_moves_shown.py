"""How far a command has come is counted in bins, however many operators have a part of each."""

from __future__ import annotations

import json
from io import StringIO

import pytest
from rich.console import Console

from app.migrating import show
from app.output import Output
from app.overview import SILENCE, Overview, note
from app.tables import tables
from schemas.status import Event, parse_event
from tests.commanded import Commanded
from tests.unit.conftest import Start


@pytest.fixture
def events(start: Start) -> list[Event]:
    """A flow of two stateful operators moves its four bins to who has two of them already."""
    flow = Commanded(start)
    flow.read(1000)
    flow.submit("m", (0, 1, 2, 3), 1, 2000)
    flow.read(3000)
    # The offset is known on the status topic only.
    said = [event for event in flow.run.events if event["id"] == "m"]
    return [parse_event(json.dumps({"offset": 0} | event).encode()) for event in said]


def printed() -> tuple[Output, StringIO]:
    text = StringIO()
    return Output(Console(file=text, width=200), as_json=False), text


def test_the_status_counts_a_bin_once(events: list[Event]) -> None:
    seen = Overview("f", beat=SILENCE)
    shown = []
    for event in events:
        note(seen.migrations, event)
        output, text = printed()
        tables(output, seen, "running", 0)
        shown += [line.split()[3:7] for line in text.getvalue().splitlines() if " sudden " in line]
    assert [row[0] for row in shown] == ["0/4", "1/4", "2/4", "2/2"]
    assert shown[-1][1:] == ["(2", "there", "already)"]


def test_the_bar_is_full_when_all_bins_have_moved(events: list[Event]) -> None:
    bars = []
    for n in range(len(events)):
        output, text = printed()
        assert show(output, iter(events[: n + 1])) == 0
        bars += [line.split("moving")[1] for line in text.getvalue().splitlines() if "/" in line]
    assert ["0/4" in bars[0], "1/4" in bars[1], "2/4" in bars[2], "2/2" in bars[3]] == [True] * 4
