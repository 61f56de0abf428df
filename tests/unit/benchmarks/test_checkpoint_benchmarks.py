"""What is made of the measurements of checkpoints."""

from __future__ import annotations

from benchmarks import held
from benchmarks.checkpoints import CHECKPOINTS

MEASURED = {
    "none_p99_ms": [20.0, 40.0], "checkpointing_p99_ms": [30.0, 44.0],
    "eos_p50_ms": [30.0, 20.0], "eos_p99_ms": [60.0, 70.0],
    "pressed_none_per_minute": [100.0, 200.0], "pressed_unaligned_per_minute": [99.0, 190.0],
    "undisturbed_per_minute": [100.0, 200.0], "unaligned_killed_per_minute": [90.0, 160.0],
    "repeats": [0.0, 0.0], "lost": [0.0, 1.0],
    "recovery_1m_ms": [1000.0, 1500.0], "recovery_1m_cold_ms": [2000.0, 2500.0],
}  # fmt: skip
DURATIONS = {
    f"{shape}_{one.name}_{what}": factor * ms
    for factor, shape in enumerate(held.SHAPES, 1)
    for place, one in enumerate(held.LOADS, 1)
    for what, ms in (("unaligned_ms", 40.0), ("aligned_ms", 4e4 / factor), ("excess_ms", 9 * place))
}


def test_what_is_compared_is_of_one_run() -> None:
    found = CHECKPOINTS.figures(MEASURED)
    assert found["p99_ratio_checkpointing"] == [1.5, 1.1]
    assert found["throughput_unaligned_over_none"] == [0.99, 0.95]
    assert found["progress_under_kills"] == [0.9, 0.8]


def test_of_shapes_and_sizes_the_worst_counts() -> None:
    found = held.figures(DURATIONS)
    assert found["unaligned_ms_300kb"] == 40, "of the chain, as the paper has it"
    assert found["aligned_over_unaligned"] == 500
    assert found["unaligned_excess_ms"] == 72


def test_each_figure_has_what_is_wanted_of_it_or_must_not_be() -> None:
    measured = MEASURED | {name: [value] for name, value in held.figures(DURATIONS).items()}
    wanted = CHECKPOINTS.at_most.keys() | CHECKPOINTS.at_least | {"repeats", "lost"}
    assert CHECKPOINTS.figures(measured).keys() == wanted
