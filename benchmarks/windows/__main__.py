"""Measure windows over columns beside a fold over columns: `python -m benchmarks.windows`.

Writes results/windows.json. What is compared takes turns, and each figure is the median of the
ratios of the runs. A smaller scale tries the benchmark, and writes nothing.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from benchmarks import report, running
from benchmarks.report import Benchmark, Part
from benchmarks.running import PARTITIONS
from benchmarks.windows import backlog

FLOW = Path(__file__).parent / "flow.py"
RECORDS, SMALL = 4_000_000, 200_000
SECONDS = 30.0
"""The size of tumbling windows, and the gap of sessions."""
PARTS = {"fold": "tumbling", "hopping": "hopping", "session": "session"}
"""The windows that each part compares with the fold."""
WINDOWS = Benchmark(
    "windows", "Windows over columns",
    at_least={"window_over_fold": 0.7, "session_over_fold": 0.4}, at_most={},
    ratios={"window_over_fold": ("tumbling", "fold"), "session_over_fold": ("session", "fold"),
            "hopping_over_fold": ("hopping", "fold")},
)  # fmt: skip
METHOD = (
    "{records:,} records of 100,000 keys, 10 a millisecond, that lie on a topic of 2 partitions, 2"
    " workers: records per second from all processes ready to the last result. fold: count over"
    " columns, one result per record; tumbling and session: the same count of windows of 30 s and"
    " of sessions with that gap, one result per window; hopping: windows of 30 s, each 6 s."
    " Medians of {runs} runs, ratios run by run."
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
        list[str] | None, typer.Option(help=f"Some of {', '.join(PARTS)}; else all.")
    ] = None,
    small: Annotated[bool, typer.Option(help="Try the benchmark: little, and no file.")] = False,
    runs: Annotated[int, typer.Option(min=1, help="Of each part.")] = 3,
) -> None:
    """Measure windows; takes about ten minutes as it is. Nothing else should run."""
    unknown = {*(only or ())} - {*PARTS}
    if unknown:
        raise typer.BadParameter(f"there is no part {', '.join(sorted(unknown))}")
    windows = [PARTS[part] for part in only or PARTS]
    records = SMALL if small else RECORDS
    method = METHOD.format(records=records, runs="{runs}")

    def prepare(bootstrap: str) -> None:
        backlog.fill(bootstrap, records, PARTITIONS)
        # What has just started compiles itself.
        drain(bootstrap, "none", records)

    parts: list[Part] = [partial(compared, windows=windows, records=records)]
    if not small:
        report.measure(WINDOWS, method, prepare, parts, runs)
        return
    with report.broker_and_bar(len(parts)) as (bootstrap, bar):
        prepare(bootstrap)
        for name, value in parts[0](bootstrap).items():
            bar.console.print(f"{name}: {value:,.4g}")


if __name__ == "__main__":
    typer.run(main)
