"""A topic of one partition whose beginning may go, as the coordinator sees it: of marks, and of
checkpoints.

Guarantees that nothing here blocks the caller: a thread asks and deletes. What goes wrong costs
room on the topic only, and is told in the log. Cost: a request per checkpoint.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from confluent_kafka import KafkaException, TopicPartition

from meander.connectors.kafka import client
from meander.connectors.kafka.client import Settings
from meander.schemas.errors import MeanderError
from meander.schemas.log_lines import LineLogger

log = LineLogger(__name__)


class TrimmedTopic:
    """For the coordinator only."""

    def __init__(self, settings: Settings, topic: str) -> None:
        self._settings, self._topic = settings, topic
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="trimming")

    def ask(self) -> Callable[[], int | None]:
        """Begin to ask where it ends; the answer, once it is there."""
        asked = self._thread.submit(self._end)
        return lambda: _answer(asked)

    def forget(self, end: int) -> None:
        """What lies before an offset may go."""
        self._thread.submit(self._delete, end).add_done_callback(_told)

    def close(self) -> None:
        """Ask nothing more."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _end(self) -> int | None:
        try:
            with contextlib.closing(
                client.consumer(self._settings, f"meander.{self._topic}")
            ) as consumer:
                return client.watermarks(consumer, self._topic, 0)[1]
        except MeanderError as error:
            log.warning("truncation_skipped", topic=self._topic, reason=str(error))
            return None

    def _delete(self, end: int) -> None:
        place = TopicPartition(self._topic, 0, end)
        # It is kept until it has answered: let go of, it never does.
        admin = client.admin(self._settings)
        try:
            admin.delete_records([place])[place].result(client.ANSWER)
        except (KafkaException, MeanderError, TimeoutError) as error:
            log.warning("truncation_failed", topic=self._topic, offset=end, reason=str(error))


def _told(done: Future[None]) -> None:
    if not done.cancelled() and (error := done.exception()) is not None:
        log.error("truncation_failed", exc_info=error)


def _answer(asked: Future[int | None]) -> int | None:
    return asked.result() if asked.done() and not asked.cancelled() else None
