"""The Spark task of a worker: one process that runs one execution after another.

Guarantees that the process ends at once when its parent dies. Where another worker is lost, this
process keeps its loaded flow and its local states, and joins the next execution. The undo log then
returns its states to the checkpoint (`state.store.undo_log`).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import tempfile
import traceback
from pathlib import Path

from pyspark import SparkFiles

from meander.app.protocol.launch_arguments import Arguments
from meander.app.protocol.messages import Failure
from meander.app.protocol.placement import expect_placed
from meander.app.worker.process import WorkerProcess
from meander.app.worker.process_state import ProcessState
from meander.connectors.links.links import member_name
from meander.schemas.errors import MeanderError
from meander.state.keys.ids import WorkerId

_PR_SET_PDEATHSIG = 1
_THREADS = "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"
"""The variables by which numeric libraries choose their number of threads as they load."""


def main(blob: bytes) -> bytes:
    """Run a worker of these launch arguments; return b'' on success, else a Failure as bytes."""
    arguments: Arguments | None = Arguments.from_bytes(blob)
    assert arguments is not None
    _die_with_parent()
    os.environ.update(_threads(arguments.resources.cores) | arguments.environ)
    me = arguments.worker
    try:
        expect_placed(member_name(WorkerId(me)), arguments.resources)
        with (
            tempfile.TemporaryDirectory(
                prefix=f"meander-{arguments.flow}-", dir=SparkFiles.getRootDirectory()
            ) as folder,
            contextlib.closing(
                ProcessState(arguments.source, arguments.sources, Path(folder), arguments.resources)
            ) as state,
        ):
            while arguments is not None:
                me = arguments.worker
                arguments = WorkerProcess(arguments, state).run()
                if arguments is not None:
                    state.end_execution()
    except MeanderError as error:
        return Failure.at(member_name(WorkerId(me)), error, traceback.format_exc()).to_bytes()
    return b""


def _threads(cores: int) -> dict[str, str]:
    """Return the variables for libraries that the flow's code loads; a local master sets none.

    >>> _threads(1), _threads(2)["OMP_NUM_THREADS"]
    ({}, '2')
    """
    return dict.fromkeys(_THREADS, str(cores)) if cores > 1 else {}


def _die_with_parent() -> None:
    """Let the kernel kill this process when Spark's Python daemon ends (Linux only)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
