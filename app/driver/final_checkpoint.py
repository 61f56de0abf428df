"""The final checkpoint: the one that a flow takes before SIGTERM ends it.

Guarantees that the flow ends within `timeout` seconds of the signal, with or without the
checkpoint. Ctrl-C, and a second signal, end it without one. The flow continues to process records
until the checkpoint is complete. Cost: one checkpoint.
"""

from __future__ import annotations

import signal
from datetime import UTC, datetime
from uuid import uuid4

from meander.app.config.options import Options
from meander.dataflow.coordinator.coordinator import Coordinator
from meander.dataflow.interfaces import Clock
from meander.schemas.control import CommandError
from meander.schemas.log_lines import LineLogger
from meander.schemas.status import Checkpointed, CheckpointFailed, Event

log = LineLogger(__name__)


class FinalCheckpoint:
    """A checkpoint that is requested once a signal has come."""

    def __init__(self, options: Options, coordinator: Coordinator, clock: Clock) -> None:
        self._options, self._coordinator, self._clock = options, coordinator, clock
        self._id = ""
        """The id of the request, once there is one."""
        self._until: float | None = None
        """The time at which the flow ends in any case, once a signal has come."""
        self._ended = False

    def may_end(self, received: int) -> bool:
        """Return whether the flow may end because of a signal. Request the checkpoint where the
        flow may not."""
        if received != signal.SIGTERM or self._options.on_stop == "none" or self._ended:
            return True
        now = self._clock.monotonic()
        if self._until is None:
            self._until = now + self._options.on_stop_timeout
            log.info("final_checkpoint_starts", kind=self._options.on_stop)
        if now >= self._until:
            self._end("it took too long", f"{self._options.on_stop_timeout:g} s")
        elif not self._id:
            self._request()
        return self._ended

    def note(self, event: Event) -> None:
        """Note an event of the flow."""
        match event:
            case Checkpointed(id=id, number=number) if self._id and id == self._id:
                log.info("final_checkpoint_complete", checkpoint=number)
                self._ended = True
            case CheckpointFailed(id=id, reason=reason) if self._id and id == self._id:
                self._end("it failed", reason)

    def _request(self) -> None:
        """Request the checkpoint, unless another request waits."""
        id = f"stop-{uuid4().hex[:8]}"
        savepoint = ""
        if self._options.on_stop == "savepoint":
            savepoint = (
                f"stop-{datetime.fromtimestamp(self._clock.now_ms() / 1000, UTC):%Y%m%dT%H%M%S}"
            )
        try:
            self._coordinator.checkpoint(id, savepoint=savepoint)
        except CommandError as error:
            log.debug("final_checkpoint_waits", reason=str(error))
        else:
            self._id = id

    def _end(self, cause: str, reason: str) -> None:
        log.warning("final_checkpoint_missing", cause=cause, reason=reason)
        self._ended = True
