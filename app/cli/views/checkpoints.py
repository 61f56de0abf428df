"""`meander checkpoint` and `meander checkpoints`: print checkpoints."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from meander.app.cli.follow import show_end
from meander.app.common.output import CommandOutput, duration, size
from meander.app.recovery.checkpoint_index import CheckpointIndex, retained_checkpoints
from meander.app.recovery.restart import read_decisions
from meander.connectors.kafka import client
from meander.connectors.kafka.client import Settings
from meander.connectors.topics.checkpoints import (
    CheckpointsReader,
    CheckpointUnreadable,
    open_checkpoints,
)
from meander.connectors.topics.internal_topics import TopicNames, expect_started
from meander.schemas.status import Checkpointed, CheckpointFailed, Event, Finished
from meander.state.checkpoint.checkpoint import Checkpoint

COLUMNS = ("number", "savepoint", "next", "age", "took", "state", "in flight")
"""The columns of the table, which fits 80 characters; JSON lines have further fields."""


@dataclass(frozen=True, slots=True)
class CheckpointRow:
    """A checkpoint that a flow can restart from; programs read these names."""

    number: int
    savepoint: str
    next_run: bool
    """Whether the next run restarts from it."""
    age_s: float
    policy: str
    alignment_ms: float
    write_ms: float
    entries: int
    state_bytes: int
    in_flight_bytes: int
    in_flight: int
    """Records."""
    workers: int
    bins: int

    @staticmethod
    def of(one: Checkpoint, savepoint: str, next_run: bool, now: float) -> CheckpointRow:
        """Describe a checkpoint; `now` is in milliseconds since 1970."""
        return CheckpointRow(
            number=one.number,
            savepoint=savepoint,
            next_run=next_run,
            age_s=max(0.0, now - one.millis) / 1000,
            policy=one.policy,
            alignment_ms=one.alignment_ms,
            write_ms=one.write_ms,
            entries=one.entries,
            state_bytes=one.state_bytes,
            in_flight_bytes=one.in_flight_bytes,
            in_flight=one.in_flight,
            workers=len(one.cut.members),
            bins=len(one.manifests),
        )

    def cells(self) -> Sequence[object]:
        """Return the cells of a table with `COLUMNS`."""
        return (
            self.number, self.savepoint, "yes" if self.next_run else "", duration(self.age_s),
            duration((self.alignment_ms + self.write_ms) / 1000), size(self.state_bytes),
            size(self.in_flight_bytes),
        )  # fmt: skip


def show_checkpoint(output: CommandOutput, events: Iterator[Event]) -> int:
    """Print how a command for a checkpoint ends; return the exit code."""
    return show_end(output, events, _end)


def _end(event: Event) -> str:
    match event:
        case Checkpointed():
            return taken(event)
        case CheckpointFailed():
            return given_up(event)
        case Finished():
            return "the flow has stopped"
    return ""


def given_up(event: CheckpointFailed) -> str:
    """Return a sentence about a checkpoint that failed.

    >>> given_up(CheckpointFailed(id="", number=3, reason="it was not done within 600 s"))
    'checkpoint 3 failed: it was not done within 600 s; the flow continues'
    """
    return f"checkpoint {event.number} failed: {event.reason}; the flow continues"


def taken(event: Checkpointed) -> str:
    """Return a sentence about a completed checkpoint.

    >>> taken(Checkpointed(
    ...     id="", number=3, savepoint="", policy="unaligned", ms=18.2, alignment_ms=0.0,
    ...     write_ms=9.1, state_bytes=2048, in_flight_bytes=0, in_flight=0,
    ... ))
    'checkpoint 3 (unaligned) taken in 18 ms: state 2.0 kB, no records in flight'
    """
    name = f", savepoint {event.savepoint}" if event.savepoint else ""
    records = f"{event.in_flight:,} records in flight, {size(event.in_flight_bytes)}"
    held = records if event.in_flight else "no records in flight"
    return (
        f"checkpoint {event.number}{name} ({event.policy}) taken in {event.ms:,.0f} ms:"
        f" state {size(event.state_bytes)}, {held}"
    )


def listed(
    settings: Settings, names: TopicNames, flow: str
) -> tuple[list[CheckpointRow], list[str]]:
    """Return the checkpoints that a flow can restart from, the newest first, and why others are
    unusable. Raises SetupError for a flow that has never run."""
    expect_started(client.admin(settings), names.control, flow)
    now = time.time() * 1000
    known = CheckpointIndex.of(read_decisions(settings, names.decisions))
    called = {offset: name for name, offset in known.savepoints.items()}
    with open_checkpoints(settings, names) as there:
        among, begins = retained_checkpoints(there, known), _begins(there, known)
    rows = [
        CheckpointRow.of(one, called.get(at, ""), at == begins, now)
        for at, one in among.found.items()
    ][::-1]
    return rows, [
        f"{f'savepoint {called[at]!r}' if at in called else 'a checkpoint'} is unusable: {error}"
        for at, error in among.unreadable.items()
    ]


def _begins(there: CheckpointsReader, known: CheckpointIndex) -> int | None:
    """Return the offset of the checkpoint that the next run uses by default. None where there is
    none, or the newest is unreadable and the run would fail."""
    try:
        found = there.newest(known.is_usable)
    except CheckpointUnreadable:
        return None
    return None if found is None else found[0]
