"""A query as `meander run` loads it; MEANDER_BENCH_* name it, its topics and its windows."""

from __future__ import annotations

from benchmarks.counting import asked
from benchmarks.nexmark.queries import QUERIES

size, every = map(float, asked("WINDOWS", "10 2").split())
flow = QUERIES[asked("QUERY", "q0")].flow(asked("PREFIX") + "out", asked("SOURCE"), size, every)
