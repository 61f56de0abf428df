"""What the status topic, and whoever watches, is told of a running flow."""

from __future__ import annotations

import logging
from collections.abc import Callable

from app.overview import note
from app.prepare import Prepared
from connectors.status import StatusTopic
from schemas.errors import MeanderError
from schemas.status import Event, Failed, Finished, Heartbeat, Migration, Started

log = logging.getLogger(__name__)

LAST_WORD = 0.5
"""Seconds that the last event gets to become durable."""

MOST_MOVING = 100
"""Migrations told of with each heartbeat: some 20 kB."""

Show = Callable[[Event], None]
"""Takes every event as it goes to the status topic."""


class FlowStatus:
    """What the status topic, and whoever watches, is told of the flow."""

    def __init__(self, prepared: Prepared, status: StatusTopic, show: Show) -> None:
        self._prepared, self._status, self._show = prepared, status, show
        self._migrations: dict[str, Migration] = {}

    def tell(self, event: Event) -> None:
        """Write an event; never blocks."""
        note(self._migrations, event)
        self._status.write(event)
        self._show(event)

    def pump(self) -> None:
        """Have what was written go out."""
        self._status.pump()

    def starting(self, up: int = 0) -> None:
        """The driver's heartbeat until all workers run; `up` of them have registered."""
        self._beat(0, {}, {}, [], [], up)

    def alive(
        self,
        lag: int,
        counters: dict[str, int],
        frontiers: dict[str, int],
        bins: list[int],
        inflight: list[int],
    ) -> None:
        """The driver's heartbeat once all workers run."""
        self._beat(lag, counters, frontiers, bins, inflight, self._prepared.options.workers)

    def _beat(
        self,
        lag: int,
        counters: dict[str, int],
        frontiers: dict[str, int],
        bins: list[int],
        inflight: list[int],
        up: int,
    ) -> None:
        options = self._prepared.options
        moving = [one for one in self._migrations.values() if one.state == "moving"]
        self._migrations = {one.id: one for one in moving}
        self.tell(
            Heartbeat(
                driver=self._prepared.driver, incarnation=self._prepared.incarnation,
                workers=options.workers, up=up, lease=options.lease, lag=lag,
                counters=counters, frontiers=frontiers, bins=bins, inflight=inflight,
                moving=moving[:MOST_MOVING], untold=max(0, len(moving) - MOST_MOVING),
            )
        )  # fmt: skip

    def started(self) -> None:
        """All workers run."""
        self.tell(
            Started(
                driver=self._prepared.driver, incarnation=self._prepared.incarnation,
                workers=self._prepared.options.workers,
            )
        )  # fmt: skip

    def finished(self, counters: dict[str, int]) -> None:
        """The end."""
        self._end(
            Finished(
                driver=self._prepared.driver,
                incarnation=self._prepared.incarnation,
                counters=counters,
            )
        )

    def failed(self, error: BaseException) -> None:
        """The end, before its time."""
        reason = str(error) if isinstance(error, MeanderError) else type(error).__name__
        self._end(
            Failed(
                driver=self._prepared.driver, incarnation=self._prepared.incarnation, reason=reason
            )
        )

    def _end(self, event: Event) -> None:
        """The last word; how the flow has ended does not depend on whether it can be written."""
        self.tell(event)
        try:
            self._status.flush(LAST_WORD)
        except MeanderError as error:
            log.warning("%s", error)
