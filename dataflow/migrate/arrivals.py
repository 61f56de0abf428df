"""Bins on their way into a stateful operator: S's second input (live reconfiguration, 2.2).

Guarantees I2 and I4: what is addressed to a bin at or after the time of its move waits until its
state has been fetched, verified and installed, however early or late pointer, command and records
come. Cost: one mask per awaited bin and batch while bins are awaited, nothing otherwise.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterator

from dataflow.batch import Int64s
from dataflow.operators.base import InputPort, Message
from dataflow.operators.rows import Rows
from dataflow.operators.timers import Timers
from dataflow.progress import outer
from state.ids import Bin
from state.layer import Installation
from state.manifest import Manifest
from state.store import Store
from state.time import Time
from state.topic import StateTopic

ENTRIES = 2048
"""Entries installed per bin and turn."""
AT_ONCE = 8
"""Bins installed side by side, so that fetching one overlaps installing another."""


class Arrivals:
    """The bins that one operator on one worker expects or installs."""

    def __init__(
        self,
        operator: str,
        store: Store,
        timers: Timers,
        topic: StateTopic,
        pointers: InputPort,
        report: Callable[[dict[str, object]], None],
    ) -> None:
        self._operator, self._store, self._timers = operator, store, timers
        self._topic, self._pointers, self._report = topic, pointers, report
        self._awaited: dict[Bin, list[int]] = {}
        self._newest: dict[Bin, int] = {}
        self._early: set[tuple[Bin, int]] = set()
        self._stashed: dict[Bin, list[Rows]] = {}
        self._queued: list[tuple[Time, Manifest]] = []
        self._installing: list[tuple[Time, Manifest, Installation]] = []

    def expect(self, bin: Bin, time: int) -> None:
        """From `time` on the bin is ours; called once every command up to then is known."""
        if (bin, time) in self._early:
            self._early.remove((bin, time))
        else:
            insort(self._awaited.setdefault(bin, []), time)

    def stash(self, rows: Rows, bins: Int64s) -> Rows:
        """Keep what has to wait for its bin; the rest may be applied."""
        for bin, times in self._awaited.items():
            waits = (bins == bin) & (rows.batch.times >= times[0])
            if waits.any():
                mine, rows = rows.split(waits)
                bins = bins[~waits]
                self._stashed.setdefault(bin, []).append(mine)
        return rows

    def schedule(self, retain: Callable[[Message], None]) -> tuple[bool, list[Rows]]:
        """Take pointers and install a little; whether anything was done, and what need wait no
        longer. `retain` keeps the capability that a pointer brings."""
        worked = False
        for message in self._pointers.drain():
            assert isinstance(message.payload, Manifest)
            retain(message)
            self._queued.append((message.time, message.payload))
            worked = True
        while self._queued and len(self._installing) < AT_ONCE:
            time, manifest = self._queued.pop(0)
            self._newest[manifest.bin] = outer(time)
            installation = Installation(self._store, manifest, self._topic)
            self._installing.append((time, manifest, installation))
        released: list[Rows] = []
        for arrival in list(self._installing):
            if arrival[2].step(ENTRIES):
                self._installing.remove(arrival)
                time, manifest, installation = arrival
                released += self._arrived(outer(time), manifest, installation)
                worked = True
        return worked, released

    @property
    def owed(self) -> Iterator[Time]:
        """The times at which something is owed on behalf of bins on their way."""
        yield from (rows.least_time for many in self._stashed.values() for rows in many)
        yield from (time for time, _ in self._queued)
        yield from (time for time, _, _ in self._installing)

    @property
    def size(self) -> int:
        """About how many bytes of records wait for their bins."""
        return sum(rows.batch.size for many in self._stashed.values() for rows in many)

    def has_come_since(self, bin: Bin, time: int) -> bool:
        """Whether a later state of the bin is here, or on its way into the store."""
        return self._newest.get(bin, -1) > time

    def busy(self) -> bool:
        """Whether installations are under way."""
        return bool(self._installing or self._queued)

    def _arrived(self, time: int, manifest: Manifest, installation: Installation) -> list[Rows]:
        bin = manifest.bin
        self._timers.install(bin, installation.timers)
        self._report(
            {
                "event": "bin_moved",
                "operator": self._operator,
                "bin": int(bin),
                "time": time,
                "bytes": installation.bytes,
                "keys": installation.count,
            }
        )
        if bin not in self._awaited or time not in self._awaited[bin]:
            self._early.add((bin, time))
            return []
        later = [t for t in self._awaited.pop(bin) if t != time]
        stashed = self._stashed.pop(bin, [])
        if not later:
            return stashed
        self._awaited[bin] = later
        return [rows for many in stashed for rows in self._until(many, bin, later[0])]

    def _until(self, rows: Rows, bin: Bin, time: int) -> list[Rows]:
        beyond = rows.batch.times >= time
        rest, now = rows.split(beyond)
        if len(rest):
            self._stashed.setdefault(bin, []).append(rest)
        return [now] if len(now) else []
