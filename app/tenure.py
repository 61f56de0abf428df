"""A driver's tenure of a flow: no other has it meanwhile, and the status topic says how it ended.

Guarantees that a heartbeat goes out while something is waited for that blocks, as Spark does.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import TypeVar

from app.flow_status import FlowStatus, Show
from app.metrics import Board
from app.options import Options
from app.prepare import Prepared, claim
from app.signals import Interrupted, Signals
from connectors.status import StatusTopic

T = TypeVar("T")


@contextlib.contextmanager
def claimed(prepared: Prepared, show: Show, board: Board) -> Iterator[FlowStatus]:
    """Have the flow while the block lasts, and tell if it fails. Raises SetupError while another
    driver has it."""
    topic = StatusTopic(prepared.options.kafka, prepared.names.status)
    with contextlib.closing(topic) as status:
        claim(prepared, status)
        told = FlowStatus(prepared, status, show, board)
        try:
            yield told
        except Interrupted:
            told.finished({})
            raise
        except BaseException as error:
            told.failed(error)
            raise


def beat_seconds(options: Options) -> float:
    """From one heartbeat to the next."""
    return min(1.0, options.lease / 4)


def beside(
    call: Callable[[], T], told: FlowStatus, look: Callable[[], None], every: float,
    signals: Signals | None,
) -> T:  # fmt: skip
    """What a call returns that blocks; `look` and a heartbeat come `every` so many seconds
    meanwhile. Raises Interrupted at a signal, and what the call raises."""
    doing: Future[T] = Future()
    roused = threading.Event()

    def run() -> None:
        try:
            doing.set_result(call())
        except BaseException as error:  # noqa: BLE001 - raised anew by `result`
            doing.set_exception(error)
        roused.set()

    with contextlib.ExitStack() as opened:
        if signals is not None:
            opened.enter_context(signals.deferred(roused.set))
        # A daemon, so that a signal ends the program without waiting for the call.
        threading.Thread(target=run, name="beside", daemon=True).start()
        while not doing.done():
            if signals is not None and signals.received:
                raise Interrupted(signals.received)
            look()
            told.starting()
            told.pump()
            roused.wait(every)
    return doing.result()
