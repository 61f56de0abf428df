"""Measure windows and joins beside folds: `python -m benchmarks.windows`.

Writes results/windows.json and results/windows_memory.json. What is compared takes turns, and each
figure is the median of the ratios of the runs. A smaller scale tries the benchmark, and writes
nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from benchmarks import report, running
from benchmarks.report import Benchmark, Part
from benchmarks.running import PARTITIONS
from benchmarks.windows import backlog, joins, memory

FLOW = Path(__file__).parent / "flow.py"
RECORDS, SMALL = 4_000_000, 200_000
SECONDS = 30.0
"""The size of tumbling windows, and the gap of sessions."""
PARTS = {"fold": "tumbling", "hopping": "hopping", "session": "session"}
"""The windows that each part compares with the fold."""
JOIN = "join"
"""The part that compares a join with a table with a fold of a Python function."""
MEMORY = "memory"
"""The part that looks at memory while records come late; it runs once."""
ALL = *PARTS, JOIN, MEMORY
JOINED, JOINED_SMALL = 1_000_000, 100_000
WINDOWS = Benchmark(
    "windows", "Windows and joins",
    at_least={"window_over_fold": 0.7, "session_over_fold": 0.4} | joins.AT_LEAST, at_most={},
    ratios={"window_over_fold": ("tumbling", "fold"), "session_over_fold": ("session", "fold"),
            "hopping_over_fold": ("hopping", "fold"), **joins.RATIOS},
    picture="windows.png",
)  # fmt: skip
LATE = Benchmark(
    "windows_memory", "Memory while records come late", at_least={}, at_most=memory.AT_MOST,
    ratios={},
)  # fmt: skip
METHOD = (
    "{records:,} records of 100,000 keys, 10 a millisecond, that lie on a topic of 2 partitions, 2"
    " workers: records per second from all processes ready to the last result. fold: count over"
    " columns, one result per record; tumbling and session: the same count of windows of 30 s and"
    " of sessions with that gap, one result per window; hopping: windows of 30 s, each 6 s."
    " plain_fold: a count by a Python function, over {joined:,} records; join: the same records"
    " with the rows of a table of 100,000 keys; json_join: with rows of four fields."
    " Medians of {runs} runs, ratios run by run."
)
LATE_METHOD = (
    "2,000 records/s of 10,000 keys for ten minutes, 2 % of them late, go to tumbling and session"
    " windows and to an interval join on 2 workers: the bytes that the workers hold in memory and"
    " on disk at the end, over those after one minute."
)


def drain(bootstrap: str, window: str, records: int) -> float:
    """Records per second of the flow with some windows, for the backlog."""
    wanted = backlog.results(window, SECONDS, records)
    bench = {"WINDOW": window, "SECONDS": f"{SECONDS:g}"}
    with running.flow(bootstrap, backlog.TOPIC, bench, kafka=running.SETTINGS, module=FLOW) as flow:
        began = time.monotonic()
        flow.until_results(wanted, 0.02)
        return records / (time.monotonic() - began)


def compared(bootstrap: str, windows: list[str], records: int) -> Mapping[str, float]:
    """The fold and some windows."""
    found = {"fold": drain(bootstrap, "none", records)}
    return found | {window: drain(bootstrap, window, records) for window in windows}


def main(
    only: Annotated[
        list[str] | None, typer.Option(help=f"Some of {', '.join(ALL)}; else all.")
    ] = None,
    small: Annotated[bool, typer.Option(help="Try the benchmark: little, and no file.")] = False,
    runs: Annotated[int, typer.Option(min=1, help="Of each part.")] = 3,
) -> None:
    """Measure windows and joins; takes about 25 minutes as it is. Nothing else should run."""
    names = only or ALL
    unknown = {*names} - {*ALL}
    if unknown:
        raise typer.BadParameter(f"there is no part {', '.join(sorted(unknown))}")
    windows = [PARTS[part] for part in names if part in PARTS]
    records, joined = (SMALL, JOINED_SMALL) if small else (RECORDS, JOINED)
    method = METHOD.format(records=records, joined=joined, runs="{runs}")

    def prepare(bootstrap: str) -> None:
        if windows:
            backlog.fill(bootstrap, records, PARTITIONS)
            # What has just started compiles itself.
            drain(bootstrap, "none", records)
        if JOIN in names:
            joins.prepare(bootstrap, joined)

    parts = list[Part]()
    if windows:
        parts.append(partial(compared, windows=windows, records=records))
    if JOIN in names:
        parts.append(partial(joins.drains, records=joined))
    if small:
        late = [partial(memory.measure, seconds=memory.SMALL)] if MEMORY in names else []
        try_out(prepare, [*parts, *late])
        return
    if parts:
        report.measure(WINDOWS, method, prepare, parts, runs)
    if MEMORY in names:
        report.measure(LATE, LATE_METHOD, lambda _: None, [memory.measure], 1)


def try_out(prepare: Callable[[str], None], parts: list[Part]) -> None:
    """Run each part once, and print what it measures."""
    with report.broker_and_bar(len(parts)) as (bootstrap, bar):
        prepare(bootstrap)
        for part in parts:
            for name, value in part(bootstrap).items():
                bar.console.print(f"{name}: {value:,.4g}")
            bar.advance(bar.task_ids[0])


if __name__ == "__main__":
    typer.run(main)
