"""Kafka clients: their settings, and their errors in words for the user.

Guarantees that a librdkafka setting of the user overrides our tuning, but never a setting that
correctness rests on. An outage is not an error: clients wait and continue. One process reports the
start and the end of an outage once (`Contact`). Every other error becomes a MeanderError, or a
SetupError where the user has to correct the environment. Settings may hold secrets, so no log line
contains them.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Mapping
from itertools import count
from typing import Protocol, TypeVar

from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from meander.connectors.kafka.addresses import try_connect
from meander.connectors.kafka.topic_ids import TopicIds
from meander.schemas.errors import MeanderError, SetupError
from meander.schemas.log_lines import LineLogger

log = LineLogger("meander.kafka")

T = TypeVar("T")
Settings = Mapping[str, str]
Values = dict[str, str | int | float | bool]

REQUEST_TIMEOUT = 15.0
"""The seconds that a call at the start waits for the broker."""
STARTUP_SECONDS = 2.0
"""The seconds for which a starting broker may close new connections at once."""
_ANY_TOPIC = TopicCollection(["__consumer_offsets"])
_POLL_SECONDS = 0.05
"""The seconds between two polls for reported errors during a wait for an answer."""
GRACE = 1.0
"""The seconds of silence before a report."""
REPORT_PAUSE = 10.0
"""The seconds between the end of an outage and the next report."""

PARTITIONER = "murmur2_random"

_ALWAYS: Values = {
    # librdkafka repeats an error at each attempt; `error_cb` reports each one to us.
    "log_level": 2,
    "socket.nagle.disable": True,
    # librdkafka waits half of this between its first two connections. A new client then has its
    # first answer in 17 ms instead of 57, and a recovery waits for several clients.
    "reconnect.backoff.ms": 20,
    # A broker that returns after minutes should not have to wait for clients.
    "reconnect.backoff.max.ms": 1000,
}
_CONSUMER: Values = {
    "fetch.min.bytes": 1,
    # A resumed partition waits for the pending fetch of the partitions without data.
    "fetch.wait.max.ms": 20,
    # By default, a full queue pauses the fetcher for a second.
    "fetch.queue.backoff.ms": 5,
    "fetch.error.backoff.ms": 100,
    "queued.max.messages.kbytes": 16 * 1024,
}
_CONSUMER_MUST: Values = {
    "auto.offset.reset": "error",
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    "isolation.level": "read_committed",
    "allow.auto.create.topics": False,
}
MAX_MESSAGE_BYTES = 1_000_000
"""The most bytes of a record that a client accepts without a setting."""
_PRODUCER: Values = {
    # Batches form while earlier ones are in flight. At 500 records/s, the median latency of an echo
    # is 1.1 ms instead of 2.4 with 1 ms. The CPU time per record is equal up to 5,000/s.
    "linger.ms": 0,
    # Java clients use it too, so each key has one partition for all producers.
    "partitioner": PARTITIONER,
    "queue.buffering.max.kbytes": 64 * 1024,
}
_PRODUCER_MUST: Values = {
    "enable.idempotence": True,
    # A record that the broker refuses ends the producer, so that no later record counts as
    # delivered.
    "enable.gapless.guarantee": True,
    # Producers wait for the end of any outage: no record times out while the flow runs.
    "message.timeout.ms": 0,
    # A broker forgets the sequence of a producer whose last record has an old timestamp. It then
    # accepts a later batch without an earlier one, which the client takes for delivered. With one
    # batch on its way there is no later one, and Kafka answers a connection's requests one by one.
    "max.in.flight.requests.per.connection": 1,
}

TRANSACTION_TIMEOUT = 60.0
"""The seconds after which Kafka aborts an open transaction. Until then, a reader of committed
records waits. A worker must send all results of one time within them."""
PRODUCER_ID_RETRY = 0.02
"""The seconds between two requests for a producer id."""
FIRST_WATERMARK_TIMEOUT = 0.03
"""The seconds between two requests at a partition's end; each wait doubles."""
_TRANSACTIONAL_MUST: Values = {
    "enable.idempotence": True,
    "transaction.timeout.ms": int(TRANSACTION_TIMEOUT * 1000),
    # Kafka aborts the whole transaction of a batch that has not arrived by then.
    "message.timeout.ms": int(TRANSACTION_TIMEOUT * 1000),
}

FIXED: Mapping[str, str | int | float | bool] = _CONSUMER_MUST | _PRODUCER_MUST
"""The settings that correctness rests on. No user setting overrides them."""


class Unreachable(SetupError):
    """An error that reports that no broker answers at present."""


OnCommit = Callable[[KafkaError | None, list[TopicPartition]], None]


def _ignore_commit(_: KafkaError | None, __: list[TopicPartition]) -> None:
    """Ignore the result of a commit."""


class ConsumedMessage(Protocol):
    """A message that a consumer returns: it has a place on a topic, unlike a constructed one."""

    def partition(self) -> int:
        """Return its partition."""

    def offset(self) -> int:
        """Return its offset, or the end offset for an end-of-partition message."""

    def key(self) -> bytes | None:
        """Return its key."""

    def value(self) -> bytes | None:
        """Return its value."""

    def headers(self) -> list[tuple[str, bytes | None]] | None:
        """Return its headers."""

    def timestamp(self) -> tuple[int, int]:
        """Return the clock of the timestamp, and milliseconds since 1970."""

    def error(self) -> KafkaError | None:
        """Return the error that the consumer reports instead of a record."""

    def __len__(self) -> int:
        """Return the bytes of its value."""


def consumer(
    settings: Settings, group: str, on_commit: OnCommit = _ignore_commit,
    ids: TopicIds | None = None, **tuning: str | float,
) -> Consumer:  # fmt: skip
    """Return a consumer for `assign()`. `tuning` (underscores for dots) holds defaults that the
    user may override. `ids` receives the ids of topics."""
    values = _ALWAYS | _CONSUMER | _dotted(tuning) | dict(settings) | _CONSUMER_MUST
    logged: dict[str, object] = {}
    if ids is not None:
        # Only log entries of a debug context contain ids, and a context makes librdkafka log all
        # levels.
        values["debug"] = ",".join(filter(None, (settings.get("debug"), "topic")))
        logged["logger"] = ids
    try:
        return Consumer(
            values | {"group.id": group},
            error_cb=contact(settings).on_error, on_commit=on_commit, **logged,
        )  # fmt: skip
    except KafkaException as error:
        raise translate(error, "Kafka settings") from None


def reader(settings: Settings, topic: str) -> Consumer:
    """Return a consumer that reads the present records of a topic. A short fetch wait delivers
    them, and the end of the topic, sooner."""
    return consumer(settings, f"meander.{topic}", fetch_wait_max_ms=2)


def producer(settings: Settings, **tuning: str | float) -> Producer:
    """Return an idempotent producer that never drops a record by itself."""
    values = _ALWAYS | _PRODUCER | _tuned(tuning, settings) | _PRODUCER_MUST
    try:
        return Producer(values, error_cb=contact(settings).on_error)
    except KafkaException as error:
        raise translate(error, "Kafka settings") from None


def transactional(settings: Settings, id: str, **tuning: str | float) -> Producer:
    """Return a producer with a transactional id. It fences earlier producers of that id and aborts
    their open transaction. Raise MeanderError after `REQUEST_TIMEOUT` seconds."""
    values = _ALWAYS | _PRODUCER | _tuned(tuning, settings) | _TRANSACTIONAL_MUST
    try:
        made = Producer(values | {"transactional.id": id}, error_cb=contact(settings).on_error)

        # Kafka refuses the id while it aborts the earlier transaction, which takes milliseconds.
        # The client alone would retry after half a second or more.
        def initialize() -> None:
            made.poll(0)
            contact(settings).check()
            made.init_transactions(PRODUCER_ID_RETRY)

        retry_transactional(initialize, REQUEST_TIMEOUT)
    except KafkaException as error:
        raise translate(error, f"transactions of {id!r}") from None
    return made


def retry_transactional(step: Callable[[], None], seconds: float = math.inf) -> None:
    """Repeat a step of a transactional producer until Kafka answers, at most `seconds`. Repetitions
    are harmless. Raise KafkaException."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            step()
        except KafkaException as error:
            if not error.args[0].retriable() or time.monotonic() > deadline:
                raise
        else:
            return


class Admin(AdminClient):
    """A client that describes and creates topics at a start. Its calls block up to
    `REQUEST_TIMEOUT` seconds."""

    def __init__(self, settings: Settings) -> None:
        self._refusal: KafkaError | None = None
        self._all_down = False
        super().__init__(_ALWAYS | dict(settings), error_cb=self._on_error)
        self.bootstrap = settings["bootstrap.servers"]
        """The addresses of the brokers."""

    def await_broker(self) -> None:
        """Wait until a broker has answered. Raise SetupError at once where one refuses the login.
        Raise Unreachable where none answers, early where one closes all connections."""
        # librdkafka ends the process where it asks for the cluster and a broker, which its
        # controller has just fenced, answers that there is no broker. A topic is always an answer.
        answers = self.describe_topics(_ANY_TOPIC, request_timeout=REQUEST_TIMEOUT)
        (answer,) = answers.values()
        startup_end = time.monotonic() + STARTUP_SECONDS
        while True:
            try:
                answer.result(_POLL_SECONDS)
            except TimeoutError:
                self.poll(0)
            except KafkaException as error:
                if error.args[0].code() > 0:  # A broker's answer, such as "no such topic".
                    return
                raise translate(error, "Kafka", self.bootstrap) from None
            else:
                return
            if self._refusal is not None:
                raise translate(self._refusal, f"Kafka at {self.bootstrap}")
            started = self._all_down and time.monotonic() > startup_end
            if started and not try_connect(self.bootstrap, GRACE):
                raise Unreachable(
                    f"Kafka at {self.bootstrap}",
                    "a broker accepts connections and closes them: it is about to start or to stop,"
                    " or it expects another security.protocol",
                    "wait for it, or set security.protocol and sasl.* (meander config shows them)",
                )

    def _on_error(self, error: KafkaError) -> None:
        """Record an error that librdkafka reports in `poll`."""
        if error.code() == KafkaError._ALL_BROKERS_DOWN:
            self._all_down = True
        elif is_refused(error):
            self._refusal = error


def admin(settings: Settings) -> Admin:
    """Return an admin client once a broker has answered. Raise SetupError for invalid settings, and
    errors as `Admin.await_broker` does. Other clients report a refused login later, in `poll`."""
    try:
        client = Admin(settings)
    except KafkaException as error:
        raise translate(error, "Kafka settings") from None
    client.await_broker()
    return client


def expect_group(settings: Settings, group: str) -> None:
    """Raise SetupError for a group that the broker does not let this user read. A consumer would
    mistake the refusal for silence and retry forever."""
    client = admin(settings)
    groups = client.describe_consumer_groups([group], request_timeout=REQUEST_TIMEOUT)
    try:
        groups[group].result()
    except KafkaException as error:
        # Other calls report a group that does not exist yet, or a broker that does not answer.
        if is_refused(error.args[0]):
            raise translate(error, f"consumer group {group!r}") from None


def _tuned(tuning: Values, settings: Settings) -> Values:
    """Merge the user's settings over a caller's defaults, except for two size limits. The flow's
    own topics take larger records than a user may want, and no batch may exceed a topic's limit.

    >>> _tuned({"batch_size": 5_000}, {"batch.size": "90000", "message.max.bytes": "10"})
    {'message.max.bytes': 1000000, 'batch.size': 5000}
    """
    own = {"message.max.bytes": MAX_MESSAGE_BYTES, **_dotted(tuning)}
    values = own | dict(settings)
    for name, bound in (("message.max.bytes", max), ("batch.size", min)):
        # The client itself refuses a value that is not a number, and names the setting.
        if name in own and name in settings and settings[name].isdecimal():
            values[name] = bound(int(own[name]), int(settings[name]))
    return values


def _dotted(tuning: Values) -> Values:
    return {name.replace("_", "."): value for name, value in tuning.items()}


class Contact:
    """A contact that tracks whether the brokers answer, for all clients of a process.

    A silence is reported with a delay, as clients report late. A report that waited in its queue
    could contradict a later answer of another client.
    """

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._silent_since: float | None = None
        self._reported = False
        self._returned_at = float("-inf")
        self._failure: MeanderError | None = None

    @property
    def lost(self) -> bool:
        """Return whether no broker answered at the last attempt."""
        return self._silent_since is not None

    def on_error(self, error: KafkaError) -> None:
        """Record an error that librdkafka reports outside of calls. Any thread may call it."""
        code = error.code()
        if code == KafkaError._ALL_BROKERS_DOWN:
            self._silent_since = self._silent_since or time.monotonic()
        elif error.fatal() or code in _REFUSED:
            self._failure = translate(error, f"Kafka at {self._bootstrap}")

    def record_answer(self) -> None:
        """Record an answer of a broker."""
        since, self._silent_since = self._silent_since, None
        if since is not None and self._reported:
            self._reported, self._returned_at = False, time.monotonic()
            seconds = self._returned_at - since
            log.warning("broker_returned", bootstrap=self._bootstrap, seconds=round(seconds, 1))

    def check(self) -> None:
        """Log a lasting silence. Raise the error that ended the contact for good, if any."""
        if self._failure is not None:
            raise self._failure
        since = self._silent_since
        if since is not None and not self._reported:
            now = time.monotonic()
            if now - since >= GRACE and now - self._returned_at >= REPORT_PAUSE:
                self._reported = True
                log.warning("broker_lost", bootstrap=self._bootstrap)


_contacts: dict[str, Contact] = {}


def contact(settings: Settings) -> Contact:
    """Return the process's only contact with the brokers of the settings. Any thread may call
    it."""
    bootstrap = settings["bootstrap.servers"]
    return _contacts.setdefault(bootstrap, Contact(bootstrap))


_REFUSED = {
    KafkaError._AUTHENTICATION: "the broker refused the login",
    KafkaError._SSL: "no encrypted connection could be made",
    KafkaError.SASL_AUTHENTICATION_FAILED: "the broker refused the login",
    KafkaError.UNSUPPORTED_SASL_MECHANISM: "the broker does not know the SASL mechanism",
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "the broker refused access to the topic",
    KafkaError.GROUP_AUTHORIZATION_FAILED: "the broker refused access to the consumer group",
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: "the broker refused the operation on the cluster",
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "the broker refused the transactional id",
}
_MISSING = {
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION,
}
_SILENT = {
    KafkaError._TRANSPORT,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._TIMED_OUT,
    KafkaError._TIMED_OUT_QUEUE,
    KafkaError._RESOLVE,
    # A starting broker may be missing from its cluster's metadata, so the client drops it.
    KafkaError._DESTROY_BROKER,
    KafkaError._UNKNOWN_BROKER,
}
_NOT_READY = {
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError.OFFSET_NOT_AVAILABLE,
    KafkaError.KAFKA_STORAGE_ERROR,
    KafkaError.NOT_ENOUGH_REPLICAS,
    KafkaError.LISTENER_NOT_FOUND,
    KafkaError.REPLICA_NOT_AVAILABLE,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.NOT_COORDINATOR,
    KafkaError.REQUEST_TIMED_OUT,
    KafkaError.NETWORK_EXCEPTION,
    KafkaError._WAIT_COORD,
}
_LOCAL = re.compile(r"(\w+://)?(127\.|localhost\b|\[::1\])")
_RECORD_REFUSALS = [
    KafkaError.MSG_SIZE_TOO_LARGE,
    KafkaError.INVALID_RECORD,
    KafkaError._INVALID_DIFFERENT_RECORD,
]
_BOUNDS = {
    KafkaError.MSG_SIZE_TOO_LARGE: (
        "a record exceeds its size limit",
        "raise its max.message.bytes, and message.max.bytes in the settings",
    ),
    KafkaError.INVALID_TIMESTAMP: (
        "a record has a timestamp that is too old for it, or too far ahead",
        "raise its message.timestamp.before.max.ms or message.timestamp.after.max.ms",
    ),
}
"""The cause and the remedy where a topic bounds its records."""
_EXPIRED = {KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE}


def is_transient(error: KafkaError) -> bool:
    """Return whether the client recovers from an error by itself."""
    return error.code() in _SILENT | _NOT_READY or error.retriable()


def is_expired(error: KafkaError) -> bool:
    """Return whether an error reports an offset without a record."""
    return error.code() in _EXPIRED


def is_refused(error: KafkaError) -> bool:
    """Return whether an error reports that the broker denies this user access."""
    return error.code() in _REFUSED


def is_record_refusal(error: KafkaError) -> bool:
    """Return whether an error reports that the broker refuses records: invalid or too large
    ones."""
    return _refusal(error).code() in _RECORD_REFUSALS


def is_missing(error: KafkaError) -> bool:
    """Return whether an error reports that a topic or a partition does not exist."""
    return error.code() in _MISSING


def retry_request(request: Callable[[], T], subject: str) -> T:
    """Repeat a request at a start until it succeeds; return its answer. Raise MeanderError after
    `REQUEST_TIMEOUT` seconds.

    A partition of a new topic may have no leader yet, or a leader that has not learned of it.
    """
    deadline = time.monotonic() + REQUEST_TIMEOUT
    while True:
        try:
            return request()
        except KafkaException as error:
            passing = is_transient(error.args[0]) or is_missing(error.args[0])
            if not passing or time.monotonic() > deadline:
                raise translate(error, subject) from None
            time.sleep(0.05)


def translate(
    error: KafkaError | KafkaException, subject: str, bootstrap: str | None = None
) -> MeanderError:
    """Return an error of Kafka in words for the user; `bootstrap` holds the brokers' addresses, if
    known.

    >>> print(translate(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED), "topic 'flights'"))
    topic 'flights': the broker refused access to the topic; have its administrator grant ...
    """
    reason = _refusal(error.args[0] if isinstance(error, KafkaException) else error)
    code, text = reason.code(), reason.str()
    if code in _REFUSED:
        return SetupError(
            subject,
            _REFUSED[code],
            "have its administrator grant this user access, or correct the settings "
            "security.protocol and sasl.* (meander config shows them)",
        )
    if code in _MISSING:
        return missing_topic(subject)
    if code in _SILENT:
        return unreachable(subject, text, bootstrap)
    if is_transient(reason):
        return Unreachable(
            subject,
            f"its broker is not ready ({text})",
            "check the brokers of the cluster and the topic's leaders",
        )
    if code == KafkaError._INVALID_ARG:
        return SetupError(subject, text, "correct it: meander config shows where it comes from")
    if code == KafkaError.TOPIC_EXCEPTION:
        return SetupError(
            subject,
            "that is no name of a topic",
            "use letters, digits, '.', '_' and '-' only, at most 249",
        )
    if code in {KafkaError.INVALID_RECORD, KafkaError._INVALID_DIFFERENT_RECORD}:
        return MeanderError(
            subject,
            f"the broker refuses a record, as a compacted topic does one without a key ({text})",
            "call key_by before the sink, or set the topic's cleanup.policy to delete",
        )
    if code in _BOUNDS:
        return MeanderError(subject, *_BOUNDS[code])
    if code in _EXPIRED:
        return MeanderError(
            subject,
            f"it does not hold the offset to be read next ({text})",
            "find the program that deleted its records, or recreated it",
        )
    return MeanderError(subject, f"Kafka answers {reason.name()}: {text}")


def _refusal(error: KafkaError) -> KafkaError:
    """Return the refusal of a record that has ended a producer, or the error itself."""
    known = map(KafkaError, [*_RECORD_REFUSALS, *_REFUSED, *_MISSING])
    ended = error.code() == KafkaError._GAPLESS_GUARANTEE
    return next((one for one in known if ended and one.str() in error.str()), error)


def unreachable(subject: str, reason: str, bootstrap: str | None) -> Unreachable:
    """Return the error for a cluster that does not answer; `bootstrap` holds its addresses, if
    known.

    >>> print(unreachable("Kafka", "refused", "127.0.0.1:9092"))
    Kafka: no broker answers at 127.0.0.1:9092 (refused); start one with meander broker start, ...
    """
    at = "" if bootstrap is None else f" at {bootstrap}"
    local = bootstrap is not None and _LOCAL.match(bootstrap)
    remedy = (
        "start one with meander broker start, or name yours with --bootstrap or MEANDER_BOOTSTRAP"
        if local
        else "start it, or correct bootstrap.servers (--bootstrap or MEANDER_BOOTSTRAP)"
    )
    return Unreachable(subject, f"no broker answers{at} ({reason})", remedy)


def missing_topic(subject: str) -> SetupError:
    """Return the error for a missing topic."""
    return SetupError(
        subject,
        "it does not exist",
        "create it (meander topics create), or correct its name",
    )


def watermarks(consumer: Consumer, topic: str, partition: int) -> tuple[int, int]:
    """Return the first offset of a partition, and the offset behind the last committed record."""
    place = TopicPartition(topic, partition)
    # A client without a connection may wait 0.7 s for no answer; a second request gets it at once.
    timeouts = (min(FIRST_WATERMARK_TIMEOUT * 2**n, REQUEST_TIMEOUT / 4) for n in count())
    return retry_request(
        lambda: consumer.get_watermark_offsets(place, timeout=next(timeouts)), f"topic {topic!r}"
    )
