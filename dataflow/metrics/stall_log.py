"""Explains in the log whatever is waited for: what, since when, and what ends it.

Guarantees one line for each wait once it has lasted `GRACE` seconds, one when that is over, and
none for a shorter wait, however often one looks. Cost: nothing while nothing is waited for.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from meander.dataflow.interfaces import Clock
from meander.schemas.log_lines import LineLogger

log = LineLogger("meander.waits")

GRACE = 1.0
"""Seconds that are not worth a word."""


@dataclass(frozen=True, slots=True)
class Wait:
    """One wait in words: it waits for `what`, which comes `when`."""

    what: str
    when: str


@dataclass(slots=True)
class _Stall:
    wait: Wait
    at: float
    at_ms: int
    told: bool = False


class Waits:
    """All waits of one process, by kind; looked at often by whoever waits, from one thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._begun: dict[str, dict[Hashable, _Stall]] = {}

    def look(self, kind: str, now: Mapping[Hashable, Wait]) -> None:
        """What is waited for now, of one kind; what is not among it any more is over."""
        begun = self._begun.get(kind)
        if not now and not begun:
            return
        if begun is None:
            begun = self._begun[kind] = {}
        seconds = self._clock.monotonic()
        for key in [key for key in begun if key not in now]:
            over = begun.pop(key)
            if over.told:
                log.info("waited", **{"for": over.wait.what}, seconds=round(seconds - over.at, 1))
        for key, wait in now.items():
            known = begun.setdefault(key, _Stall(wait, seconds, self._clock.now_ms()))
            if not known.told and seconds - known.at >= GRACE:
                known.told, known.wait = True, wait
                since = datetime.fromtimestamp(known.at_ms / 1000, UTC)
                log.info("waiting", **{"for": wait.what}, since=f"{since:%X}", until=wait.when)
