"""The lease of a driver on a flow: its claim, and heartbeats while a call blocks.

Guarantees that no other driver runs the flow meanwhile, and that the status topic states how it
ended. The driver sends heartbeats while it waits for a blocking call, such as the start of Spark.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import TypeVar

from meander.app.common.signals import Interrupted, Signals
from meander.app.config.options import Options
from meander.app.loading.preflight import PreparedFlow
from meander.app.recovery.claiming import Waiting, claim
from meander.app.status.metrics import MetricsCollector
from meander.app.status.publisher import FlowStatus, Show
from meander.connectors.kafka.client import Unreachable
from meander.connectors.topics.status import StatusTopic
from meander.schemas.log_lines import LineLogger

T = TypeVar("T")

log = LineLogger(__name__)


@contextlib.contextmanager
def hold_lease(
    prepared: PreparedFlow,
    show: Show,
    metrics: MetricsCollector,
    waiting: Waiting = lambda _: None,
) -> Iterator[tuple[PreparedFlow, FlowStatus]]:
    """Claim a flow while the block lasts; yield it with its execution id, and its status.

    The status topic gets the error that ends the block. `waiting` gets the seconds for which the
    driver still waits for the lease of another one. Raises SetupError while another driver
    runs the flow.
    """
    topic = StatusTopic(prepared.options.kafka, prepared.names.status)
    with contextlib.closing(topic) as opened:
        prepared = claim(prepared, opened, waiting)
        status = FlowStatus(prepared, opened, show, metrics)
        try:
            yield prepared, status
        except Interrupted:
            status.finished({})
            raise
        except BaseException as error:
            status.failed(error)
            raise


def heartbeat_seconds(options: Options) -> float:
    """Return the seconds between two heartbeats of the driver."""
    return min(1.0, options.heartbeat_timeout / 4)


def run_with_heartbeat(
    call: Callable[[], T], status: FlowStatus, poll: Callable[[], None], every: float,
    signals: Signals | None,
) -> T:  # fmt: skip
    """Return the result of a blocking call, with a `poll` and a heartbeat `every` few seconds.

    Raises the error of the call, and Interrupted at a signal.
    """
    called: Future[T] = Future()
    wakeup = threading.Event()

    def run() -> None:
        try:
            called.set_result(call())
        except BaseException as error:  # noqa: BLE001 - raised again by `result`
            called.set_exception(error)
        wakeup.set()

    with contextlib.ExitStack() as opened:
        if signals is not None:
            opened.enter_context(signals.deferred(wakeup.set))
        # A daemon, so that a signal ends the program without waiting for the call.
        threading.Thread(target=run, name="blocking-call", daemon=True).start()
        while not called.done():
            if signals is not None and signals.received:
                raise Interrupted(signals.received)
            poll()
            status.starting()
            status.pump()
            wakeup.wait(every)
    return called.result()


class RetryUnreachable:
    """A caller that repeats calls to Kafka between two executions until a broker answers.

    It sends heartbeats to the survivors with `poll`; arguments as for `run_with_heartbeat`.
    """

    def __init__(
        self, status: FlowStatus, poll: Callable[[], None], every: float, signals: Signals | None
    ) -> None:
        self._status, self._poll, self._every, self._signals = status, poll, every, signals
        self._logged = False

    def call(self, call: Callable[[], T]) -> T:
        """Return the result of a call once Kafka answers. Raises Interrupted at a signal."""
        while True:
            try:
                return run_with_heartbeat(
                    call, self._status, self._poll, self._every, self._signals
                )
            except Unreachable:
                if not self._logged:
                    self._logged = True
                    log.warning("recovery_paused", reason="no broker answers")
