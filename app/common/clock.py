"""The clock of this machine."""

import time


class SystemClock:
    """A clock that implements `dataflow.interfaces.Clock`."""

    def now_ms(self) -> int:
        """Return the wall clock in milliseconds since 1970."""
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        """Return seconds that never decrease."""
        return time.monotonic()
