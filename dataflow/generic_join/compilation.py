"""The compilation of the loops of lookups, before the first prefix needs one.

Guarantees that afterwards no loop compiles while a flow runs: each has run on small and on wide
values. Cost: some ten seconds of CPU once per machine and version, then nothing that counts.
"""

from __future__ import annotations

import numpy as np

from meander.dataflow.generic_join import kernels


def compile_lookups() -> None:
    """Run each loop once, which compiles it or loads its machine code."""
    zero, one, out = np.zeros(1, np.int64), np.ones(1, np.int64), np.zeros(1, np.int64)
    places, times = (zero, one, zero, one, one), np.zeros((1, 1), np.int64)
    kernels.count_static(*places, 0, out)
    kernels.count_dynamic(*places, times, 1, out)
    for values in (np.zeros(1, np.int32), np.zeros(1, np.int64)):
        kernels.propose_static(*places, values, 0, out, out, out)
        kernels.propose_dynamic(*places, values, times, one, out, out, out)
        kernels.support_static(*places, zero, values, 0, out)
        kernels.support_dynamic(*places, zero, values, times, one, out)
