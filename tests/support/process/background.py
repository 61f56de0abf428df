"""What a test does beside a flow that runs in its own process, until the flow has had enough."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable

from meander.app.common.signals import Signals


class BackgroundSteps:
    """Does things beside a flow, then ends it as a signal would, whether or not they went well."""

    def __init__(self, *steps: Callable[[], object]) -> None:
        self.signals = Signals()
        self._steps = steps
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            for step in self._steps:
                step()
        except BaseException as error:
            self._failure = error
        self.signals.received = signal.SIGINT
