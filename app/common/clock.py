"""The clock of this machine."""

import time


class SystemClock:
    """Implements `dataflow.interfaces.Clock`."""

    def now_ms(self) -> int:
        """Wall clock, milliseconds since 1970."""
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        """Seconds that never run backwards."""
        return time.monotonic()
