"""What `meander status` prints of an overview."""

from __future__ import annotations

from io import StringIO

from rich.console import Console

from app.output import Output
from app.overview import Overview
from app.tables import fields, tables
from schemas.status import HeldBack, Latency


def printed(seen: Overview) -> str:
    """As a terminal shows it."""
    console = Console(file=StringIO(), width=200)
    tables(Output(console, as_json=False), seen, "running", 9)
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def test_what_a_newer_flow_waits_for_and_times_is_shown_as_it_says() -> None:
    held = HeldBack(probe="out", by="the moon", since_ms=5, awaited=True, kind="moon", name="")
    took = Latency(of="eclipse", name="sun", count=1, seconds=0.1, p50=0.1, p99=0.1)
    seen = Overview("f", frontiers={"out": 5}, held=[held], latencies=[took])
    assert "the moon" in printed(seen)
    assert "eclipse of sun" in printed(seen)
    assert fields(seen, "running", 9)["held"] == [held.model_dump()]
