"""The compilation of all loops of collections, before the first record needs one.

Guarantees that afterwards no loop compiles while a flow runs: each has run on small and on wide
values. numba keeps machine code beside the modules, or in the folder of the user. Cost: some twenty
seconds of CPU once per machine and version, then half a second per process.
"""

from __future__ import annotations

import numpy as np

from meander.dataflow.collections.arrangement import Arrangement
from meander.dataflow.collections.count import TotalCount
from meander.dataflow.collections.join import IncrementalJoin, Side
from meander.dataflow.collections.reduce import Reduction, minimum
from meander.state.collections import kernels
from meander.state.collections.columns import Int64s, Values
from meander.state.collections.description import LayerDescription
from meander.state.collections.layer import Layer, Updates
from meander.state.collections.merge import layer_of
from meander.state.times.antichain import Antichain

DEPTH = 2
WIDE = 1 << 40
"""A value that does not fit 32 bits."""
LAST_HASH = (1 << 64) - 1
STEPS = 6
ROWS = 40
"""Rows of one key, so that the sorts of many rows run, too."""


def compile_loops() -> None:
    """Run each loop once, which compiles it or loads its machine code."""
    for width in (1, WIDE):
        arrangement = Arrangement(DEPTH)
        reduction = Reduction("compilation", arrangement.reader(DEPTH), minimum, DEPTH)
        join = IncrementalJoin(Side.own(DEPTH), Side.own(DEPTH), _paired)
        for now in range(STEPS):
            layer = _layer(now, width)
            arrangement.insert(layer)
            for _ in (*reduction.step(layer), *join.step(layer, layer)):
                pass
        arrangement.remove(0, LAST_HASH, STEPS)
    _gather_static(np.zeros(1, np.int32))
    _gather_static(np.zeros(1, np.int64))
    _count()


def _gather_static(values: Values) -> None:
    """Gather no rows of the static part of a chunk, which the layers above may lack."""
    none, times = np.zeros(1, np.int64), np.zeros((1, DEPTH), np.int64)
    kernels.gather_static(values, none, none, times[0], 0, none, none, times, none, 0)


def _count() -> None:
    """Count one value of one key."""
    count, some = TotalCount("compilation", lambda *row: row), Updates.of([(7, 1, (1,), 1)])
    lower, upper = count.output.upper, Antichain.of(2)
    for _ in count.step(some, LayerDescription(lower, upper, lower)):
        pass


def _layer(now: int, width: int) -> Layer:
    """Return rows of one time that cancel those of the last one."""
    times = [(now, n % 3) for n in range(ROWS)]
    added = [(7, width * n, time, 1) for n, time in enumerate(times)]
    removed = [(7, width * n, (now, 2), -1) for n in range(ROWS)] if now else []
    lower, upper = Antichain.of((now, 0)), Antichain.of((now + 1, 0))
    return layer_of(Updates.of([*added, *removed], DEPTH), LayerDescription(lower, upper, lower))


def _paired(keys: Int64s, left: Int64s, right: Int64s) -> tuple[Int64s, Int64s]:
    return keys, left + right
