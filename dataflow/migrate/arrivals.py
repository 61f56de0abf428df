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
from dataflow.operators.pool import Pool
from dataflow.operators.rows import Rows
from dataflow.operators.timers import Timers
from dataflow.progress import outer
from state.antichain import Antichain
from state.ids import Bin
from state.layer import Installation
from state.manifest import Manifest
from state.store import Store
from state.time import MIN_TIME, Time
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
        pools: Callable[[str], Pool],
        report: Callable[[dict[str, object]], None],
    ) -> None:
        self._operator, self._store, self._timers = operator, store, timers
        self._topic, self._pointers, self._report = topic, pointers, report
        self._pools = pools
        self._awaited: dict[Bin, list[int]] = {}
        self._newest: dict[Bin, int] = {}
        self._early: set[tuple[Bin, int]] = set()
        self._stashed: dict[Bin, Pool] = {}
        self._released: set[Bin] = set()
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
        first = {bin: times[0] for bin, times in self._awaited.items()}
        # Of a bin that has come all goes on waiting in line, until what waited before has gone.
        first |= dict.fromkeys(self._released, MIN_TIME)
        for bin, time in first.items():
            waits = (bins == bin) & (rows.batch.times >= time)
            if waits.any():
                mine, rows = rows.split(waits)
                bins = bins[~waits]
                if bin not in self._stashed:
                    self._stashed[bin] = self._pools(f"bin {bin}")
                self._stashed[bin].add(mine)
        return rows

    def schedule(self, retain: Callable[[Message], None]) -> bool:
        """Take pointers and install a little; whether anything was done. `retain` keeps the
        capability that a pointer brings."""
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
        for arrival in list(self._installing):
            if arrival[2].step(ENTRIES):
                self._installing.remove(arrival)
                time, manifest, installation = arrival
                self._arrived(outer(time), manifest, installation)
                worked = True
        return worked

    def release(self) -> tuple[list[Rows], bool]:
        """Take what need wait no longer, or the first slice of it, and whether there is more."""
        found: list[Rows] = []
        for bin in sorted(self._released):
            # It may have left and be awaited again by now.
            until = Antichain.of(*self._awaited.get(bin, [])[:1])
            rows, more = self._stashed[bin].passed(until)
            found += rows
            if not more:
                self._released.remove(bin)
                if self._stashed[bin].least is None:
                    del self._stashed[bin]
        return found, bool(self._released)

    def shed(self) -> bool:
        """Move some of what waits in memory to disk; whether there is any."""
        return any(pool.shed() for pool in self._stashed.values())

    @property
    def owed(self) -> Iterator[Time]:
        """The times at which something is owed on behalf of bins on their way."""
        for pool in self._stashed.values():
            yield from pool.owed
        yield from (time for time, _ in self._queued)
        yield from (time for time, _, _ in self._installing)

    @property
    def ahead(self) -> Iterator[Time]:
        """The times of what need wait no longer, or lower bounds of them."""
        for bin in self._released:
            yield from self._stashed[bin].owed

    @property
    def spilled(self) -> bool:
        """Whether anything that need wait no longer is on disk."""
        return any(self._stashed[bin].spilled for bin in self._released)

    @property
    def size(self) -> int:
        """About how many bytes of records wait for their bins in memory."""
        return sum(pool.size for pool in self._stashed.values())

    def has_come_since(self, bin: Bin, time: int) -> bool:
        """Whether a later state of the bin is here, or on its way into the store."""
        return self._newest.get(bin, -1) > time

    def busy(self) -> bool:
        """Whether installations are under way."""
        return bool(self._installing or self._queued)

    def _arrived(self, time: int, manifest: Manifest, installation: Installation) -> None:
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
            return
        later = [t for t in self._awaited.pop(bin) if t != time]
        if later:
            self._awaited[bin] = later
        if bin in self._stashed:
            self._released.add(bin)
