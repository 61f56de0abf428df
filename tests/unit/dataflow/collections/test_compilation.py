"""No loop of collections compiles while a flow runs."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
from meander.dataflow.collections import count_kernels, kernels
from meander.dataflow.collections.compilation import compile_loops
from meander.dataflow.generic_join import kernels as lookups
from meander.dataflow.generic_join.compilation import compile_lookups
from meander.state.collections import kernels as rows, merge_kernel

compile_loops()
compile_lookups()
for module in count_kernels, kernels, lookups, rows, merge_kernel:
    for name, loop in vars(module).items():
        if not name.startswith("_") and hasattr(loop, "signatures"):
            print(name, len(loop.signatures))
"""
"""The loops that other modules call; loops that only these call need no entry of their own."""
OF_BOTH_WIDTHS = {
    "merge", "gather_static", "gather_dynamic", "propose_static", "propose_dynamic",
    "support_static", "support_dynamic",
}  # fmt: skip
CALLED_BY_LOOPS = {"consolidate_times"}


def test_each_loop_is_compiled_for_all_widths_of_values() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], check=True, capture_output=True, text=True
    )
    found = {name: int(count) for name, count in map(str.split, done.stdout.splitlines())}
    assert len(found) > 15
    for name in found.keys() - CALLED_BY_LOOPS:
        assert found[name] >= (2 if name in OF_BOTH_WIDTHS else 1), name
