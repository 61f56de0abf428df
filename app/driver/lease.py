"""A driver's tenure of a flow: no other has it meanwhile, and the status topic says how it ended.

Guarantees that a heartbeat goes out while something is waited for that blocks, as Spark does.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import TypeVar

from meander.app.common.signals import Interrupted, Signals
from meander.app.config.options import Options
from meander.app.flow.preflight import PreparedFlow
from meander.app.recovery.claiming import claim
from meander.app.status.metrics import MetricsCollector
from meander.app.status.publisher import FlowStatus, Show
from meander.connectors.kafka.client import Unreachable
from meander.connectors.topics.status import StatusTopic
from meander.schemas.log_lines import LineLogger

T = TypeVar("T")

log = LineLogger(__name__)


@contextlib.contextmanager
def claimed(
    prepared: PreparedFlow, show: Show, board: MetricsCollector
) -> Iterator[tuple[PreparedFlow, FlowStatus]]:
    """Have the flow, under the execution of the claim, while the block lasts; tell if it fails.
    Raises SetupError while another driver has it."""
    topic = StatusTopic(prepared.options.kafka, prepared.names.status)
    with contextlib.closing(topic) as status:
        prepared = claim(prepared, status)
        told = FlowStatus(prepared, status, show, board)
        try:
            yield prepared, told
        except Interrupted:
            told.finished({})
            raise
        except BaseException as error:
            told.failed(error)
            raise


def beat_seconds(options: Options) -> float:
    """From one heartbeat to the next."""
    return min(1.0, options.heartbeat_timeout / 4)


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


class RetryUnreachable:
    """Asks Kafka between two lives: an outage is waited for, as long as it takes; arguments as of
    `beside`."""

    def __init__(
        self, told: FlowStatus, look: Callable[[], None], every: float, signals: Signals | None
    ) -> None:
        self._told, self._look, self._every, self._signals = told, look, every, signals
        self._said = False

    def answer(self, ask: Callable[[], T]) -> T:
        """What it says, once it does. Raises Interrupted at a signal."""
        while True:
            try:
                return beside(ask, self._told, self._look, self._every, self._signals)
            except Unreachable:
                if not self._said:
                    self._said = True
                    log.warning("recovery_paused", reason="no broker answers")
