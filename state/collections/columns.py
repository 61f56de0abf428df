"""Columns: the types of arrays that hold updates, and the compiler of loops over them.

Guarantees that machine code on disk belongs to its source: numba compiles a loop again once the
text of its module has changed. It does not see changes elsewhere, so a compiled loop calls compiled
loops of its own module only. Cost: some seconds per process and loop where no folder is writable.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt
from numba import njit

Int64s = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]
UInt64s = npt.NDArray[np.uint64]
Bools = npt.NDArray[np.bool_]
Values = npt.NDArray[np.int32] | npt.NDArray[np.int64]

Loop = TypeVar("Loop", bound=Callable[..., Any])


def compiled(loop: Loop) -> Loop:
    """Return a loop without objects as machine code, which releases the GIL.

    Its first call compiles it, or loads it from the folder of its module or of the user.
    """
    try:
        return cast(Loop, njit(cache=True, nogil=True)(loop))
    except RuntimeError:
        # Neither folder is writable.
        return cast(Loop, njit(nogil=True)(loop))


def inlined(loop: Loop) -> Loop:
    """Return a loop that becomes a part of each loop that calls it."""
    return cast(Loop, njit(nogil=True, inline="always")(loop))
