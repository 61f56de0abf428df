"""The times of a worker are those of its execution, though its process may have had others."""

from __future__ import annotations

from meander.app.worker.turn_times import TurnTimes


def test_cpu_time_of_an_earlier_execution_of_the_process_counts_once() -> None:
    earlier = TurnTimes()
    sum(range(1_000_000))
    before = earlier.cpu
    later = TurnTimes()
    spent = later.cpu
    assert before > 0
    assert before + spent <= earlier.cpu
