"""What the demo is busy with: a line when a stage begins, and on a terminal one that moves.

The moving line shows the time taken, and, where what is done can be counted, how much of how much,
how fast, and the time left. Elsewhere nothing is ever written over: a log gets whole lines.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Event, Thread

from pyspark.sql import SparkSession
from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
)
from rich.text import Text

LOOK = 0.5
"""Seconds between two looks at what cannot tell by itself how far it is."""


@dataclass(slots=True)
class Gauge:
    """How far a stage is."""

    progress: Progress
    unit: str = ""
    done: int = 0
    total: int | None = None

    def show(self, done: int, total: int, unit: str, note: str = "") -> None:
        """So much of so much is done; `note` is shown after it."""
        self.unit, self.done, self.total = unit, done, total
        for task in self.progress.task_ids:
            self.progress.update(task, completed=done, total=total, unit=unit, note=note)


@dataclass(slots=True)
class Stages:
    """What the demo spends its time on, seconds."""

    console: Console
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def stage(self, name: str, text: str) -> Iterator[Gauge]:
        """Name what happens, show how far it is, and note how long it takes."""
        began = time.monotonic()
        self.console.print(f"[dim]{sum(self.seconds.values()):5.1f} s[/]  {text}")
        with _moving(self.console) as progress:
            progress.add_task(text, total=None, unit="", note="")
            gauge = Gauge(progress)
            yield gauge
        took = self.seconds[name] = time.monotonic() - began
        if gauge.total is not None:
            self.console.print(f"         {gauge.done:,} {gauge.unit} in {took:.1f} s")


class _HowFar(ProgressColumn):
    """How much of how much, how fast, and the time left; nothing while that is not known."""

    def render(self, task: Task) -> Text:
        """In words."""
        if task.total is None:
            return Text()
        words = [f"{task.completed:,.0f} of {task.total:,.0f} {task.fields['unit']}"]
        if task.speed:
            words.append(f"{task.speed:,.0f}/s" if task.speed >= 1 else f"{task.speed:.1f}/s")
        if task.time_remaining:
            words.append(f"{task.time_remaining:,.0f} s left")
        return Text(", ".join(words))


def _moving(console: Console) -> Progress:
    return Progress(
        SpinnerColumn(),
        TimeElapsedColumn(),
        BarColumn(bar_width=24),
        _HowFar(),
        TextColumn("{task.fields[note]}"),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


@contextmanager
def counting_tasks(spark: SparkSession, gauge: Gauge) -> Iterator[None]:
    """Show how many of Spark's tasks are done, as far as it has planned them, beside the block."""
    over = Event()

    def look() -> None:
        while not over.wait(LOOK):
            done, total = tasks(spark)
            # Where all that is planned is done, more is being planned.
            if done < total:
                gauge.show(done, total, "tasks of Spark")

    thread = Thread(target=look, name="demo progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    gauge.show(*tasks(spark), "tasks of Spark")


def tasks(spark: SparkSession) -> tuple[int, int]:
    """Of all jobs that belong to no group: how many tasks are done, and how many are planned."""
    tracker = spark.sparkContext.statusTracker()
    jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup()]
    numbers = {int(stage) for job in jobs if job is not None for stage in job.stageIds}
    stages = [stage for stage in map(tracker.getStageInfo, numbers) if stage is not None]
    return sum(stage.numCompletedTasks for stage in stages), sum(s.numTasks for s in stages)
