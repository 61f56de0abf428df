"""The truncation of a topic with one partition, for the coordinator: of commit markers and
checkpoints.

Guarantees that no call blocks the caller: a thread asks and deletes. A failure wastes only space on
the topic, and the log reports it. Cost: a request per checkpoint.
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


class TruncatedTopic:
    """A topic that a thread truncates for the coordinator only."""

    def __init__(self, settings: Settings, topic: str) -> None:
        self._settings, self._topic = settings, topic
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="trimming")

    def request_end(self) -> Callable[[], int | None]:
        """Start to ask for the end offset; return a function that returns it once it is known."""
        request = self._thread.submit(self._end)
        return lambda: _answer(request)

    def truncate(self, end: int) -> None:
        """Let the records before an offset go."""
        self._thread.submit(self._delete, end).add_done_callback(_log_failure)

    def close(self) -> None:
        """Stop all requests."""
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
        # The client lives until it has answered; an earlier deletion would never return.
        admin = client.admin(self._settings)
        try:
            admin.delete_records([place])[place].result(client.REQUEST_TIMEOUT)
        except (KafkaException, MeanderError, TimeoutError) as error:
            log.warning("truncation_failed", topic=self._topic, offset=end, reason=str(error))


def _log_failure(done: Future[None]) -> None:
    if not done.cancelled() and (error := done.exception()) is not None:
        log.error("truncation_failed", exc_info=error)


def _answer(request: Future[int | None]) -> int | None:
    return request.result() if request.done() and not request.cancelled() else None
