"""What others take for the triangles of the same graph: igraph, scipy, and joins in Spark SQL.

Each counts them once from all edges in memory, in a new process, and keeps nothing up to date.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import perf_counter

import igraph
import numpy as np
import pandas as pd
from pyspark.sql import SparkSession
from scipy import sparse

from benchmarks.flow_control.graphs import RandomGraph
from benchmarks.flow_control.runs import forget_peak, peak
from benchmarks.incremental.found import Found, Tick, rss
from meander.state.collections.columns import Int64s

CORES = 2


def by_igraph(edges: Int64s) -> int:
    """Return the number of triangles by igraph."""
    return len(igraph.Graph(edges=edges).list_triangles())


def by_scipy(edges: Int64s) -> int:
    """Return the number of triangles by a product of sparse matrices."""
    ones, size = np.ones(len(edges), np.int64), int(edges.max()) + 1
    matrix = sparse.csr_array((ones, (edges[:, 0], edges[:, 1])), shape=(size, size))
    return int((matrix @ matrix).multiply(matrix).sum())


def cliques(graph: RandomGraph, size: int) -> int:
    """Return the number of cliques of a size in a graph, by igraph."""
    edges = graph.columns()
    if size == 3:
        return by_igraph(edges)
    return len(igraph.Graph(edges=edges).cliques(size, size))


def measure(name: str, graph: RandomGraph, tick: Tick) -> Found:
    """Return the seconds, the peak of memory above that before, and the triangles."""
    edges = graph.columns()
    if name == "spark":
        return _measured_by_spark(edges)
    count: Callable[[Int64s], int] = {"igraph": by_igraph, "scipy": by_scipy}[name]
    found = _measured(partial(count, edges), Path("/proc/self"))
    tick(1)
    return found


def _measured_by_spark(edges: Int64s) -> Found:
    """Return the figures of a session that has run before on a few edges. Its edges are cached
    before, and its memory is that of its JVM."""
    builder = SparkSession.builder.master(f"local[{CORES}]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.memory", "4g")
    session = builder.config("spark.sql.shuffle.partitions", 2 * CORES).getOrCreate()
    frame = session.createDataFrame(pd.DataFrame(edges, columns=["start", "end"])).cache()
    frame.limit(1000).createOrReplaceTempView("edges")
    _by_spark(session)
    frame.createOrReplaceTempView("edges")
    frame.count()
    jvm = session.sparkContext._jvm
    assert jvm is not None, "a session has a JVM"
    pid = jvm.java.lang.ProcessHandle.current().pid()
    found = _measured(partial(_by_spark, session), Path(f"/proc/{pid}"))
    session.stop()
    return found


def _by_spark(session: SparkSession) -> int:
    """Return the number of triangles by two joins of Spark SQL."""
    (found,) = session.sql(
        "select count(*) from edges x join edges y on x.end = y.start"
        " join edges z on x.start = z.start and y.end = z.end"
    ).collect()
    return int(found[0])


def _measured(count: Callable[[], int], process: Path) -> Found:
    before = rss(process)
    forget_peak(process)
    started = perf_counter()
    cliques = count()
    seconds = perf_counter() - started
    memory = peak(process) - before
    return Found(figures={"seconds": seconds, "peak_bytes": memory, "cliques": cliques})
