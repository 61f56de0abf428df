"""What runs in an executor: one worker's process, in one life of its flow after the other.

Guarantees that the process ends at once when its parent dies. Where another worker is lost, this
one keeps its process, the flow it has loaded and its local states, and goes on from the checkpoint
with all others; the states go back to what they were then by what is here (`state.store.undo_log`).
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
from meander.app.worker.process import WorkerProcess
from meander.app.worker.process_state import ProcessState
from meander.connectors.links.links import member_name
from meander.schemas.errors import MeanderError
from meander.state.keys.ids import WorkerId

_PR_SET_PDEATHSIG = 1


def main(blob: bytes) -> bytes:
    """Run a worker; b'' when it ended as it should, else a Failure as bytes."""
    arguments: Arguments | None = Arguments.from_bytes(blob)
    assert arguments is not None
    _die_with_parent()
    os.environ.update(arguments.environ)
    me = arguments.worker
    try:
        with (
            tempfile.TemporaryDirectory(
                prefix=f"meander-{arguments.flow}-", dir=SparkFiles.getRootDirectory()
            ) as folder,
            contextlib.closing(ProcessState(arguments.source, Path(folder))) as kept,
        ):
            while arguments is not None:
                me = arguments.worker
                arguments = WorkerProcess(arguments, kept).run()
                if arguments is not None:
                    kept.outlive()
    except MeanderError as error:
        return Failure.at(member_name(WorkerId(me)), error, traceback.format_exc()).to_bytes()
    return b""


def _die_with_parent() -> None:
    """Have the kernel kill this process when Spark's Python daemon ends (Linux only)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
