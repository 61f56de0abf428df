"""I7: a worker tells the time that its records take from the time that other processes take."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from meander.app.common.clock import SystemClock

SCHEDSTAT = Path("/proc/thread-self/schedstat")
SPIN = "import os; os.sched_setaffinity(0, {%d}); print(flush=True)\nwhile True: pass"


@pytest.mark.skipif(not SCHEDSTAT.exists(), reason="this system does not count waits")
def test_a_wait_for_a_core_takes_no_undisturbed_time() -> None:
    clock, cores = SystemClock(), os.sched_getaffinity(0)
    core = min(cores)
    words = [sys.executable, "-c", SPIN % core]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        os.sched_setaffinity(0, {core})
        try:
            began, undisturbed = clock.monotonic(), clock.undisturbed()
            # Both have one core, so this thread waits sooner or later.
            while clock.monotonic() - began < clock.undisturbed() - undisturbed + 0.001:
                pass
        finally:
            os.sched_setaffinity(0, cores)
            other.kill()
