"""A timer queue that spills: near timers are in memory, far ones are rows of the operator's store.

Guarantees the order of time and tag over both, and each timer in one place. Invariant: no far timer
of a bin precedes the horizon of the bin. So the first timer is near once all horizons lie behind
it. A new timer from the horizon of its bin on is far. Beyond `max_bytes` the later half of the near
timers becomes far, some at a time, and the horizons move back (I6). Where the queue reaches a
horizon, the next far timers of the bin become near, and the horizon moves on. Timers from a `limit`
of their bin on stay far. Cost: that of `TimerQueue` for a timer that is never far, else that of its
row (`state/store/timer_rows.py`).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import numpy as np

from meander.dataflow.operators.keyed.horizons import Horizons
from meander.dataflow.operators.keyed.timer_queue import TIMER_BYTES, TimerQueue
from meander.state.encoding.timers import Clock, Timer
from meander.state.keys.ids import Bin
from meander.state.store.timer_rows import TimerRows
from meander.state.times.time import END_TIME

NEAR_BYTES: Final = 8 << 20
"""The most bytes of near timers, unless one step makes more."""
SPILLED: Final = 512
"""The timers that become far at once, in a millisecond or two."""
LOADED: Final = 1024
"""The most timers of a bin that become near at once."""


class SpillingQueue(TimerQueue):
    """A queue of timers of several bins by one clock. Those of a bin with a limit do not count as
    `first` from the limit on."""

    def __init__(self, rows: TimerRows, clock: Clock) -> None:
        super().__init__()
        self.max_bytes = NEAR_BYTES
        self._rows, self._clock = rows, clock
        self._horizons, self._kept = Horizons(), Horizons()
        """The horizons of bins before their limits, and those at or behind them."""
        self._limits: dict[Bin, int] = {}
        self._spilling: list[Timer] = []
        """Near timers to become far, and some that have gone."""

    def set(self, bin: Bin, timer: Timer, *, named: bool = False) -> None:
        """Add a timer, near or far. A tag with a name must have no other time."""
        if timer in self._bins:
            return
        horizon = self._horizon(bin)
        if (horizon is not None and timer >= horizon) or timer[0] >= self._limit(bin):
            self._add_far(bin, timer, named=named)
            return
        self.add(bin, timer, named=named)
        if self.size > self.max_bytes:
            self._spill()

    def open(self, bin: Bin) -> None:
        """Find the horizon of a bin that has been installed with rows."""
        first = self._rows.first(bin, self._clock)
        if first is not None:
            self._set_horizon(bin, first)

    def limit(self, bin: Bin, time: int) -> None:
        """Let the timers of a bin from a time on be far, and stay so."""
        self._limits[bin] = time
        for timer, named in self.take(bin, time):
            self._add_far(bin, timer, named=named, new=True)
        if (horizon := self._horizon(bin)) is not None:
            self._set_horizon(bin, horizon)

    def unlimit(self, bin: Bin) -> None:
        """Remove the limit of a bin that has no timers."""
        self._limits.pop(bin, None)

    @property
    def first(self) -> Timer | None:
        """Return the first timer, or None. Far timers become near as they are reached."""
        near = self._head()
        while (far := self._horizons.first) is not None and (near is None or far[0] <= near):
            self._load(*far)
            near = self._head()
        return near

    @property
    def least(self) -> int | None:
        """Return the time of the first timer, or an earlier one, also from limits on; or None."""
        far = (horizons.first for horizons in (self._horizons, self._kept))
        firsts = [one[0] for one in far if one is not None]
        if (near := self._head()) is not None:
            firsts.append(near)
        return min(firsts)[0] if firsts else None

    def least_of(self, bin: Bin) -> int | None:
        """Return the time of the first timer of a bin, or an earlier one, or None."""
        times = [time for time, _ in self._by_bin.get(bin, ())]
        if (horizon := self._horizon(bin)) is not None:
            times.append(horizon[0])
        return min(times, default=None)

    def drop(self, bin: Bin) -> None:
        """Remove the timers of a bin. Its rows stay in the store."""
        super().drop(bin)
        self._horizons.pop(bin)
        self._kept.pop(bin)

    @property
    def bins(self) -> Collection[Bin]:
        """Return the bins that have timers, or had far ones."""
        return {*self._by_bin, *self._horizons.bins, *self._kept.bins}

    def _limit(self, bin: Bin) -> int:
        return self._limits.get(bin, END_TIME + 1)

    def _horizon(self, bin: Bin) -> Timer | None:
        return self._horizons.get(bin) or self._kept.get(bin)

    def _set_horizon(self, bin: Bin, timer: Timer) -> None:
        self._horizons.pop(bin)
        self._kept.pop(bin)
        horizons = self._horizons if timer[0] < self._limit(bin) else self._kept
        horizons.set(bin, timer)

    def _add_far(self, bin: Bin, timer: Timer, *, named: bool, new: bool = False) -> None:
        self._rows.add(bin, self._clock, timer, named=named, new=new)
        horizon = self._horizon(bin)
        if horizon is None or timer < horizon:
            self._set_horizon(bin, timer)

    def _load(self, horizon: Timer, bin: Bin) -> None:
        """Let the first far timers of a bin become near."""
        share = self.max_bytes // (2 * TIMER_BYTES * len(self._horizons))
        count = max(1, min(LOADED, share))
        found, rest = self._rows.load(bin, self._clock, horizon, self._limit(bin), count)
        for timer, named in found:
            self.add(bin, timer, named=named)
        self._horizons.pop(bin)
        if rest is not None:
            self._set_horizon(bin, rest)

    def _spill(self) -> None:
        """Let later timers become far until there are few enough near ones."""
        while self.size > self.max_bytes:
            if not self._spilling:
                self._spilling = self._later_half()
            some = [self._spilling.pop() for _ in range(min(SPILLED, len(self._spilling)))]
            for timer in filter(self.__contains__, some):
                bin, named = self._bins[timer], timer[1] in self._times
                self._remove(timer)
                self._add_far(bin, timer, named=named, new=True)
            self._trim()

    def _later_half(self) -> list[Timer]:
        """Return the near timers in the later half of their times."""
        times = np.fromiter((time for time, _ in self._bins), np.int64, len(self))
        middle = len(self) // 2
        since = int(np.partition(times, middle)[middle])
        return [timer for timer in self._bins if timer[0] >= since]
