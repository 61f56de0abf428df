"""`meander checkpoint` and `meander checkpoints`: how checkpoints are shown."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from app.following import show_end
from app.output import Output, size
from connectors import client
from connectors.checkpoints import last
from connectors.client import Settings
from connectors.topics import Names, expect_ran
from dataflow.checkpoint.taking import KEPT
from schemas.status import Checkpointed, Event

COLUMNS = ("number", "age", "entries", "state", "in flight", "records", "workers", "bins")


def show_checkpoint(output: Output, events: Iterator[Event]) -> int:
    """Print how a command ends that takes one; the exit code."""
    return show_end(output, events, _end)


def _end(event: Event) -> str:
    return taken(event) if isinstance(event, Checkpointed) else ""


def taken(event: Checkpointed) -> str:
    """What people are told of one.

    >>> taken(Checkpointed(
    ...     id="", number=3, ms=18.2, state_bytes=2048, in_flight_bytes=0, in_flight=0
    ... ))
    'checkpoint 3 taken in 18 ms: state 2.0 kB, no records in flight'
    """
    records = f"{event.in_flight:,} records in flight, {size(event.in_flight_bytes)}"
    return (
        f"checkpoint {event.number} taken in {event.ms:,.0f} ms: state {size(event.state_bytes)},"
        f" {records if event.in_flight else 'no records in flight'}"
    )


def rows(settings: Settings, names: Names, flow: str) -> Sequence[Sequence[object]]:
    """The checkpoints of a flow, the newest first, as `COLUMNS` says. Raises SetupError for a flow
    that has never run."""
    expect_ran(client.admin(settings), names.control, flow)
    now = time.time() * 1000
    return [
        [
            one.number, f"{max(0.0, now - one.millis) / 1000:,.0f} s", f"{one.entries:,}",
            size(one.state_bytes), size(one.in_flight_bytes), f"{one.in_flight:,}",
            len(one.cut.members), len(one.manifests),
        ]
        for one in last(settings, names.checkpoints, KEPT)
    ][::-1]  # fmt: skip
