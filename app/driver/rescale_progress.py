"""Describe what a rescale waits for, in one sentence for users.

The sentence selects from the waits of the driver (`app.driver.wait_reasons`) those of the workers
that join or leave and of the moves that the rescale causes. Where a frontier has stood still for a
second, the sentence names its blocker.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence

from meander.dataflow.coordinator.rescaler import Rescaler
from meander.dataflow.coordinator.worker_change import Change
from meander.dataflow.metrics.stall_log import GRACE, Wait
from meander.dataflow.migration.scheduler import MigrationScheduler
from meander.schemas.status import BlockedFrontier, RescaleProgress

MAX_WAITS = 3
"""The most waits in a sentence."""

WaitsByKind = Mapping[str, Mapping[Hashable, Wait]]
"""All waits of the driver, by kind."""

_OF_FRONTIERS = {"sources", "operators", "leaving_worker"}
"""The waits that a frontier may hold up."""


def rescale_progress(
    rescaler: Rescaler,
    migrations: MigrationScheduler,
    closed_before: int | None,
    waits: WaitsByKind,
    blockers: Sequence[BlockedFrontier],
    now_ms: int,
) -> RescaleProgress | None:
    """Return the rescale in progress, or else the first in the queue, with what it waits for."""
    change = rescaler.in_progress
    if change is None:
        first = next(iter(rescaler.wait_reasons().values()), None)
        return None if first is None else RescaleProgress(
            id=str(first.fields["id"]), joining=[], leaving=[], waits_for=first.until
        )  # fmt: skip
    found = [*_own(change, waits), *_queued(change, migrations, closed_before)]
    sentences = [_sentence(wait) for wait in found[:MAX_WAITS]]
    if len(found) > MAX_WAITS:
        sentences.append(f"{len(found) - MAX_WAITS} more")
    if any(wait.what in _OF_FRONTIERS for wait in found):
        sentences += _held_back(blockers, now_ms)
    return RescaleProgress(
        id=change.id, joining=sorted(change.joining), leaving=sorted(change.leaving),
        waits_for="; ".join(sentences),
    )  # fmt: skip


def _own(change: Change, waits: WaitsByKind) -> Iterator[Wait]:
    """Yield the waits of the workers and moves of a rescale."""

    def of(kind: str, field: str, workers: Collection[object]) -> Iterator[Wait]:
        some = waits.get(kind, {}).values()
        return (wait for wait in some if wait.fields.get(field) in workers)

    yield from of("workers", "worker", change.joining)
    yield from of("joins", "joining_worker", change.joining)
    for kind, field in (("migrations", "migration"), ("partitions", "id")):
        for wait in waits.get(kind, {}).values():
            if str(wait.fields.get(field, "")).startswith(f"{change.id}/"):
                yield wait
    yield from of("leaves", "worker", change.leaving)
    yield from of("exits", "worker", change.leaving)


def _queued(
    change: Change, migrations: MigrationScheduler, closed_before: int | None
) -> Iterator[Wait]:
    """Yield the waits of moves that are queued behind other commands or in preparation."""
    for one in migrations.commands:
        id = one.command.id
        if not id.startswith(f"{change.id}/") or one.rounds or closed_before is None:
            continue
        left = {"bins_left": len(one.named)}
        if ahead := migrations.ahead_of(id, closed_before):
            yield Wait("queued", f"{', '.join(map(repr, ahead))} has ended", left)
        else:
            yield Wait("prefetch", "the new owners have prefetched their next bins", left)


def _held_back(blockers: Sequence[BlockedFrontier], now_ms: int) -> Iterator[str]:
    """Yield the frontier that has stood still for longest, with its blocker."""
    for one in blockers[:1]:
        seconds = (now_ms - one.since_ms) / 1000
        if seconds >= GRACE:
            yield f"frontier {one.probe!r} has stood still for {seconds:,.0f} s: {one.by}"


def _sentence(wait: Wait) -> str:
    """Return the condition that ends a wait, with its objects.

    >>> _sentence(Wait("bins", "it is installed", {"migration": "r1/bins", "left": 2, "bin": 7}))
    'it is installed (left 2, bin 7)'
    """
    own = {"migration", "id", "timeout_s"}
    objects = [f"{name} {value}" for name, value in wait.fields.items() if name not in own]
    return wait.until + (f" ({', '.join(objects)})" if objects else "")
