"""A query as `meander run` loads it; MEANDER_BENCH_* name it, its topics and its windows."""

from __future__ import annotations

from benchmarks.counting import asked
from benchmarks.nexmark.queries import BIDS, COUNT, QUERIES, Query, counts
from benchmarks.nexmark.records import HotItem

size, every = map(float, asked("WINDOWS", "10 2").split())
queries = QUERIES | {COUNT: Query("tumbling count", BIDS, HotItem, counts)}
flow = queries[asked("QUERY", "q0")].flow(asked("PREFIX") + "out", asked("SOURCE"), size, every)
