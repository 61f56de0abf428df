"""Placement: a worker moves to the other host of a Spark cluster and back, with all it has."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.control.changes import (
    BETWEEN,
    HALVES,
    TAIL,
    Applied,
    Load,
    Sections,
    apply,
    bins_of,
    current,
    found,
    under,
)
from benchmarks.control.identity import Timelines
from benchmarks.latency import WARM_UP
from benchmarks.outcome import Found
from benchmarks.running import PARTITIONS, Running
from benchmarks.states import States
from tests.support.process.spark_cluster import cluster

HOSTS = ("127.0.0.1", "127.0.0.2")
CORES = 2
"""Of each Spark worker: a successor runs beside the workers that there are."""
NAME = "placement"
ARRANGED = {
    "workers": {"0": {"host": HOSTS[0]}, "1": {"host": HOSTS[1]}},
    "bins_of": {"affected": HALVES, "unaffected": {"0": "0-255"}},
    "partitions": {"records": {"0": f"0-{PARTITIONS - 1}"}},
}
"""The plan before: all that the moving worker has are bins of the affected operator."""


def placement(states: States, load: Load) -> dict[str, Found]:
    """Move a worker between two Spark workers. Raises Unavailable, Lost."""
    with (
        tempfile.TemporaryDirectory() as folder,
        cluster(Path(folder), len(HOSTS), HOSTS, CORES) as master,
        states.flow(load.keys, {}, master=master) as loaded,
        under(loaded, load, bins_of(HALVES["1"])) as loop,
    ):
        apply(loaded.flow, NAME, ARRANGED)
        time.sleep(WARM_UP + load.steady)
        applied = [*_repeated(loaded.flow, 2 * load.repeats)]
        time.sleep(TAIL)
    return found(Timelines.of(loop.measured()), applied, load.steady)


def _repeated(flow: Running, repeats: int) -> Iterator[Applied]:
    for _ in range(repeats):
        yield apply(flow, NAME, elsewhere(current(flow)))
        time.sleep(BETWEEN)


def elsewhere(plan: Sections) -> dict[str, object]:
    """The workers of a plan, that without bins of the other operator on the other host.

    >>> workers = {"0": {"host": HOSTS[0]}, "3": {"host": HOSTS[0]}}
    >>> elsewhere({"workers": workers, "bins_of": {"unaffected": {"0": "0-255"}}})
    {'workers': {'0': {'host': '127.0.0.1'}, '3': {'host': '127.0.0.2'}}}
    """
    workers = dict(plan["workers"])
    (moving,) = (one for one in workers if one not in plan["bins_of"]["unaffected"])
    (other,) = (host for host in HOSTS if host != workers[moving]["host"])
    return {"workers": {**workers, moving: {"host": other}}}
