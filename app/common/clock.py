"""The clock of this machine."""

import os
import threading
import time


class _RunDelay(threading.local):
    """The time for which a thread has waited for a core, as Linux counts it."""

    def __init__(self) -> None:
        try:
            self._file = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
        except OSError:
            # Other systems do not count it.
            self._file = -1

    def seconds(self) -> float:
        """Return the seconds so far; 0 where the system does not count them."""
        if self._file < 0:
            return 0.0
        return int(os.pread(self._file, 128, 0).split()[1]) / 1e9


_run_delay = _RunDelay()


class SystemClock:
    """A clock that implements `dataflow.interfaces.Clock`."""

    def now_ms(self) -> int:
        """Return the wall clock in milliseconds since 1970."""
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        """Return seconds that never decrease."""
        return time.monotonic()

    def undisturbed(self) -> float:
        """Return the seconds of `monotonic` without those for which this thread waited for a
        core."""
        return time.monotonic() - _run_delay.seconds()
