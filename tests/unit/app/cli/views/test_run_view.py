"""What `meander run` prints where no terminal reads: events, and a summary every ten seconds."""

from __future__ import annotations

import json
import time
from io import StringIO

import pytest
from msgspec import structs
from rich.console import Console

from meander.app.cli.views.run import Watch, show_dead_letters
from meander.app.cli.views.summary import EVERY
from meander.app.common.output import CommandOutput
from meander.app.status.overview import SILENCE
from meander.schemas.status import CheckpointAccepted, Recovering, Started, parse_event

STARTED = Started(driver="d", execution=1, workers=2)
RUNNING = structs.replace(SILENCE, workers=2, bins=[4, 4], lag=70)


def test_a_summary_every_ten_seconds_replaces_heartbeats_where_no_terminal_reads(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    monkeypatch.setattr(time, "time_ns", lambda: 9_500 * 1_000_000)
    with Watch(CommandOutput(Console(), as_json=True), bounded=False) as watch:
        watch.show(structs.replace(SILENCE, registered=1))
        watch.show(STARTED)
        for second in range(1, int(2 * EVERY) + 2):
            now = 1000.0 + second
            counters = {"read": 20 * second, "written": 5 * second}
            frontiers = {"early": 1_500 + second, "late": 9_000, "none": 0}
            beat = structs.replace(RUNNING, counters=counters, frontiers=frontiers)
            watch.show(beat)
            if second == 5:
                watch.show(CheckpointAccepted(id="c", offset=3))
    printed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    first, _, _, second_one, third = printed
    kinds = ["summary", "started", "checkpoint_accepted", "summary", "summary"]
    assert [line["type"] for line in printed] == kinds
    assert (first["state"], first["workers"], first["frontier_delay_ms"]) == ("starting", 1, None)
    assert second_one == {
        "type": "summary", "state": "running", "workers": 2,
        "records_in_per_second": 20.0, "records_out_per_second": 5.0, "lag": 70,
        "frontier_delay_ms": 7_990, "checkpoints": 0, "migrations": 0, "dead_letters": 0,
    }  # fmt: skip
    assert third["frontier_delay_ms"] == 7_980
    assert third["records_in_per_second"] == 20.0


def test_a_recovery_names_the_new_numbers_of_workers() -> None:
    console = Console(file=StringIO(), width=200)
    lost = Recovering(
        driver="d", execution=2, checkpoint=7, reason="worker 1: it died", renumbered={9: 2}
    )
    assert parse_event(lost.to_bytes()) == lost
    with Watch(CommandOutput(console, as_json=False), bounded=False) as watch:
        watch.show(lost)
    assert isinstance(console.file, StringIO)
    said = "restarts from checkpoint 7: worker 1: it died; worker 9 becomes 2"
    assert said in console.file.getvalue().splitlines()


@pytest.mark.parametrize(("workers", "said"), [(1, "1 worker runs\n"), (2, "2 workers run\n")])
def test_the_start_counts_the_workers(workers: int, said: str) -> None:
    console = Console(file=StringIO(), width=200)
    with Watch(CommandOutput(console, as_json=False), bounded=False) as watch:
        watch.show(Started(driver="d", execution=1, workers=workers))
    assert isinstance(console.file, StringIO)
    assert console.file.getvalue().startswith(said)


def test_a_terminal_shows_how_long_the_driver_waits_for_the_lease_of_another() -> None:
    watch = Watch(CommandOutput(Console(file=StringIO(), width=200), as_json=False), bounded=False)
    assert watch._line.tasks[0].description == "checking the flow"
    watch.wait(9.4)
    shown = watch._line.tasks[0].description
    assert shown == "waiting for the lease of another driver, at most 9 s more"


def test_rates_go_on_over_executions(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    with Watch(CommandOutput(Console(), as_json=True), bounded=False) as watch:
        watch.show(structs.replace(RUNNING, counters={"read": 5_000}))
        now += EVERY - 2
        watch.show(STARTED)
        now += 2
        watch.show(structs.replace(RUNNING, counters={"read": 5_080}))
    *_, last = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert last["records_in_per_second"] == 8.0


def test_a_recovery_restarts_workers_and_shows_no_negative_rate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    watch = Watch(CommandOutput(Console(file=StringIO(), width=200), as_json=False), bounded=True)

    def shown() -> str:
        return watch._line.tasks[0].description

    watch.show(structs.replace(SILENCE, workers=2, registered=1))
    assert shown() == "starting Spark: 1 of 2 workers registered"
    for read in (0, 500):
        now += 1
        watch.show(structs.replace(RUNNING, counters={"read": read}))
    assert shown().startswith("500 records read (500/s)")
    watch.show(Recovering(driver="d", execution=2, checkpoint=7, reason="it died", renumbered={}))
    now += 30
    watch.show(structs.replace(SILENCE, workers=2, counters={"read": 500}))
    assert shown() == "restarting: 0 of 2 workers registered"
    for read in (500, 600):
        now += 1
        watch.show(structs.replace(RUNNING, counters={"read": read}))
    assert shown().startswith("600 records read (100/s)")


def test_run_with_dead_letters_says_so_on_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    text = StringIO()
    terminal = CommandOutput(Console(file=text, width=80), as_json=False)
    show_dead_letters(terminal, "counts", 1)
    show_dead_letters(terminal, "counts", 1234)
    assert text.getvalue().splitlines() == [
        "1 dead letter: see meander dead-letters counts",
        "1,234 dead letters: see meander dead-letters counts",
    ]
    show_dead_letters(CommandOutput(Console(), as_json=True), "counts", 3)
    line = json.loads(capsys.readouterr().out)
    assert line == {"type": "dead_letters", "flow": "counts", "count": 3}
