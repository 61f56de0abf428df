"""How far a command has come is counted in bins, however many operators have a part of each."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from io import StringIO

import pytest
from msgspec import structs
from rich.console import Console

from meander.app.cli.views.migrate import show, show_abort
from meander.app.cli.views.rescale import show_rescale
from meander.app.cli.views.status import tables
from meander.app.common.output import CommandOutput
from meander.app.status.overview import SILENCE, Overview, note
from meander.schemas.status import (
    Aborted,
    Accepted,
    BinUnreadable,
    Completed,
    Event,
    Joined,
    Queued,
    Rescaled,
    RescaleProgress,
    Rescaling,
    parse_event,
)
from tests.support.sim.commanded_flow import CommandedFlow
from tests.support.sim.start import Start


@pytest.fixture
def events(start: Start) -> list[Event]:
    """A flow of two stateful operators moves its four bins to who has two of them already."""
    flow = CommandedFlow(start)
    flow.read(1000)
    flow.submit("m", (0, 1, 2, 3), 1, 2000)
    flow.read(3000)
    # The offset is known on the status topic only.
    said = [event for event in flow.run.events if event["id"] == "m"]
    return [parse_event(json.dumps({"offset": 0} | event).encode()) for event in said]


def printed() -> tuple[CommandOutput, StringIO]:
    text = StringIO()
    return CommandOutput(Console(file=text, width=200), as_json=False), text


def test_the_status_counts_a_bin_once(events: list[Event]) -> None:
    seen = Overview("f", heartbeat=SILENCE)
    shown = []
    for event in events:
        note(seen.migrations, event)
        output, text = printed()
        tables(output, seen, "running", 0)
        shown += [
            line.split()[3:7] for line in text.getvalue().splitlines() if " all-at-once " in line
        ]
    assert [row[0] for row in shown] == ["0/4", "1/4", "2/4", "2/2"]
    assert shown[-1][1:] == ["(2", "already", "there)"]


def test_the_bar_is_full_when_all_bins_have_moved(events: list[Event]) -> None:
    bars = []
    for n in range(len(events)):
        output, text = printed()
        assert show(output, iter(events[: n + 1])) == 0
        bars += [line.split("moving")[1] for line in text.getvalue().splitlines() if "/" in line]
    assert ["0/4" in bars[0], "1/4" in bars[1], "2/4" in bars[2], "2/2" in bars[3]] == [True] * 4


ACCEPTED = Accepted(id="m", offset=0, time=None, at=None, strategy="batched", bins=[0, 1, 2, 3])


def shown(*events: Event) -> tuple[int, list[str]]:
    """The exit code of `meander migrate`, and what it says."""
    output, text = printed()
    code = show(output, iter(events))
    return code, text.getvalue().splitlines()


def test_bins_that_stay_are_printed_with_the_reason_and_exit_code_1() -> None:
    unreadable = BinUnreadable(
        id="m", bin=2, operator="a", reason="its checksum is", kept_in_place=True
    )
    code, said = shown(
        ACCEPTED, unreadable, Completed(id="m", ms=1, bins=1, bytes=5, unmoved=[1, 2])
    )
    reasons = "1 because they are unreadable, 1 because the flow's sources have ended"
    assert (code, f"2 bins stay where they were: {reasons}" in said) == (1, True)
    assert "completed: 1 bin (1 were already there), 5 B, 1 ms" in said


def test_what_waited_until_the_end_says_that_all_of_it_stays() -> None:
    queued = Queued(id="m", offset=0, after=["n"])
    code, said = shown(queued, Completed(id="m", ms=1, bins=0, bytes=0, unmoved=[0, 1]))
    assert code == 1
    assert "2 bins stay where they were: 2 because the flow's sources have ended" in said
    assert "completed: 0 bins, 0 B, 1 ms" in said


def test_bins_that_were_there_already_are_exit_code_0() -> None:
    code, said = shown(ACCEPTED, Completed(id="m", ms=1, bins=1, bytes=5))
    assert (code, "completed: 1 bin (3 were already there), 5 B, 1 ms" in said) == (0, True)


@pytest.mark.parametrize(
    ("unmoved", "said"),
    [([1], "m has ended by a: 0 bins have moved, 0 B; 1 stay"), ([], "m has ended by a")],
)
def test_an_aborted_command_names_the_one_that_ended_it(unmoved: list[int], said: str) -> None:
    output, text = printed()
    ended = Aborted(id="m", by="a", ms=0, bins=0, bytes=0, unmoved=unmoved)
    assert show_abort(output, iter([ended])) == 0
    assert text.getvalue().splitlines() == [said]


def test_a_worker_that_is_started_for_a_migration_is_shown() -> None:
    begun = Rescaling(id="m", offset=0, workers=3, joining=[2], leaving=[])
    code, said = shown(begun, Joined(id="m", worker=2))
    assert code == 0
    assert said[:2] == ["worker 2 does not exist, so the flow starts it", "worker 2 has joined"]


def test_a_rescale_says_what_it_waits_for_once_in_ten_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    waiting = RescaleProgress("r", joining=[2], leaving=[], waits_for="a slot is free (worker 2)")

    def events() -> Iterator[Event]:
        nonlocal now
        yield Rescaling(id="r", offset=0, workers=3, joining=[2], leaving=[])
        for _ in range(25):
            now += 1
            yield structs.replace(SILENCE, rescale=waiting)
        yield Joined(id="r", worker=2)
        yield Rescaled(id="r", workers=3, ms=5.0)

    output, text = printed()
    assert show_rescale(output, events()) == 0
    said = "Command r waits until a slot is free (worker 2)."
    assert text.getvalue().splitlines().count(said) == 2


def test_a_rescale_whose_joining_workers_get_no_bins_has_exit_code_1() -> None:
    output, text = printed()
    ended = Rescaled(
        id="r", workers=3, ms=5.0, reason="the joined workers get no share: it is over"
    )
    assert show_rescale(output, iter([ended])) == 1
    assert "3 workers, 5 ms; the joined workers get no share: it is over" in text.getvalue()
