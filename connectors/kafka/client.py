"""Kafka clients as Meander builds them, and what their errors mean to the user.

Guarantees that a user's librdkafka setting wins over our tuning, but never over what correctness
rests on. An outage is no error: clients wait and go on, and one process says once that it waits
and once that it is over (`Contact`). All else becomes a MeanderError, or a SetupError where
something outside the flow has to be put right. Settings may hold secrets and are never logged.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Mapping
from itertools import count
from typing import Protocol, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from meander.connectors.kafka.addresses import knock
from meander.connectors.kafka.source.topic_ids import TopicIds
from meander.schemas.errors import MeanderError, SetupError
from meander.schemas.log_lines import LineLogger

log = LineLogger("meander.kafka")

T = TypeVar("T")
Settings = Mapping[str, str]
Values = dict[str, str | int | float | bool]

ANSWER = 15.0
"""Seconds that a call at start waits for the broker."""
HANDSHAKE = 2.0
"""Seconds for which a broker may end connections at once, as one does that starts."""
_LISTEN = 0.05
"""Seconds from one look to the next at what is reported beside an answer that is waited for."""
GRACE = 1.0
"""Seconds of silence that are not worth a word."""
QUIET = 10.0
"""Seconds between the end of an outage and the next report of one."""

PARTITIONER = "murmur2_random"

_ALWAYS: Values = {
    # librdkafka repeats itself at each attempt; errors reach us through `error_cb`.
    "log_level": 2,
    "socket.nagle.disable": True,
    # librdkafka lets half of this pass between its first two connections: a new client has its
    # first answer in 17 ms instead of 57, and a recovery waits for several.
    "reconnect.backoff.ms": 20,
    # A broker that is back after minutes should not wait for us.
    "reconnect.backoff.max.ms": 1000,
}
_CONSUMER: Values = {
    "fetch.min.bytes": 1,
    # A partition that is resumed waits for the fetch under way of those that have nothing.
    "fetch.wait.max.ms": 20,
    # By default a full queue makes the fetcher pause for a second.
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
MESSAGE_MOST = 1_000_000
"""Bytes of a record that a client takes, where no setting says otherwise."""
_PRODUCER: Values = {
    # Batches form by themselves while earlier ones are under way. Measured at 500 records/s: p50
    # of an echo 1.1 ms instead of 2.4 with 1 ms, at the same CPU per record up to 5,000/s.
    "linger.ms": 0,
    # As Java's clients do, so that a key lies in the same partition whoever wrote it.
    "partitioner": PARTITIONER,
    "queue.buffering.max.kbytes": 64 * 1024,
}
_PRODUCER_MUST: Values = {
    "enable.idempotence": True,
    # A record that the broker refuses ends the producer: none behind it may pass for delivered.
    "enable.gapless.guarantee": True,
    # An outage of any length is waited for: nothing is given up while the flow lives.
    "message.timeout.ms": 0,
}

TRANSACTION = 60.0
"""Seconds after which Kafka gives up a transaction that has not ended: until then a reader of what
is committed reads no further. All results of one time have to be sent within them."""
AGAIN = 0.02
"""Seconds after which Kafka is asked again for the id of a producer."""
SOON = 0.03
"""The same where a partition ends, each time twice as long."""
_TRANSACTIONAL_MUST: Values = {
    "enable.idempotence": True,
    "transaction.timeout.ms": int(TRANSACTION * 1000),
    # What has not arrived by then is given back with all of its transaction.
    "message.timeout.ms": int(TRANSACTION * 1000),
}

FIXED: Mapping[str, str | int | float | bool] = _CONSUMER_MUST | _PRODUCER_MUST
"""What correctness rests on: a flow's clients have these values whatever the user sets."""


class Unreachable(SetupError):
    """No broker answers, for now."""


OnCommit = Callable[[KafkaError | None, list[TopicPartition]], None]


def _unheard(_: KafkaError | None, __: list[TopicPartition]) -> None:
    """Who commits nothing hears nothing of it."""


class ConsumedMessage(Protocol):
    """A message as consumers return it: unlike one made by hand it has a place on a topic."""

    def partition(self) -> int:
        """Its partition."""

    def offset(self) -> int:
        """Its offset; of the end of a partition, where that lies."""

    def key(self) -> bytes | None:
        """Its key."""

    def value(self) -> bytes | None:
        """Its value."""

    def headers(self) -> list[tuple[str, bytes | None]] | None:
        """Its headers."""

    def timestamp(self) -> tuple[int, int]:
        """Whose clock, and milliseconds since 1970."""

    def error(self) -> KafkaError | None:
        """What came in place of a record."""

    def __len__(self) -> int:
        """Bytes of its value."""


def consumer(
    settings: Settings, group: str, on_commit: OnCommit = _unheard, ids: TopicIds | None = None,
    **tuning: str | float,
) -> Consumer:  # fmt: skip
    """A consumer for `assign()`; `tuning` (underscores for dots) is what the user may change. Where
    `ids` is given it hears of topics' ids."""
    values = _ALWAYS | _CONSUMER | _dotted(tuning) | dict(settings) | _CONSUMER_MUST
    logged: dict[str, object] = {}
    if ids is not None:
        # Only entries of a debugging context tell of ids; a context has librdkafka log all levels.
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
    """A consumer for who reads of a topic what is there and no more: its next reading, or word that
    it is at the end, waits for the fetch under way."""
    return consumer(settings, f"meander.{topic}", fetch_wait_max_ms=2)


def producer(settings: Settings, **tuning: str | float) -> Producer:
    """An idempotent producer that never gives a record up by itself."""
    values = _ALWAYS | _PRODUCER | _tuned(tuning, settings) | _PRODUCER_MUST
    try:
        return Producer(values, error_cb=contact(settings).on_error)
    except KafkaException as error:
        raise translate(error, "Kafka settings") from None


def transactional(settings: Settings, id: str, **tuning: str | float) -> Producer:
    """A producer under an id: whoever had it before commits nothing any more, and what that one had
    begun is undone. Raises MeanderError, after `ANSWER` seconds."""
    values = _ALWAYS | _PRODUCER | _tuned(tuning, settings) | _TRANSACTIONAL_MUST
    try:
        made = Producer(values | {"transactional.id": id}, error_cb=contact(settings).on_error)

        # While Kafka undoes what the id had begun it says so; the client by itself would then wait
        # for half a second, and longer, though that takes some milliseconds.
        def begin() -> None:
            made.poll(0)
            contact(settings).check()
            made.init_transactions(AGAIN)

        patiently(begin, ANSWER)
    except KafkaException as error:
        raise translate(error, f"transactions of {id!r}") from None
    return made


def patiently(step: Callable[[], None], seconds: float = math.inf) -> None:
    """Until Kafka has answered to a step of a transactional producer, for so long: it is asked
    anew, which does no harm, where no answer came. Raises KafkaException."""
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
    """A client for what is asked and set up at start; its calls block up to `ANSWER` seconds."""

    def __init__(self, settings: Settings) -> None:
        self._refusal: KafkaError | None = None
        self._down = False
        super().__init__(_ALWAYS | dict(settings), error_cb=self._on_error)
        self.bootstrap = settings["bootstrap.servers"]
        """Whom it asks."""

    def greet(self) -> None:
        """Wait until a broker has answered. Raises SetupError at once where one refuses the login,
        and Unreachable where none answers: soon, where one takes connections and ends them."""
        asked, soon = self.describe_cluster(request_timeout=ANSWER), time.monotonic() + HANDSHAKE
        while True:
            try:
                asked.result(_LISTEN)
            except TimeoutError:
                self.poll(0)
            except KafkaException as error:
                raise translate(error, "Kafka", self.bootstrap) from None
            else:
                return
            if self._refusal is not None:
                raise translate(self._refusal, f"Kafka at {self.bootstrap}")
            if self._down and time.monotonic() > soon and not knock(self.bootstrap, GRACE):
                raise Unreachable(
                    f"Kafka at {self.bootstrap}",
                    "a broker takes connections and ends them: it is about to start or to stop, or"
                    " it expects another security.protocol",
                    "wait for it, or set security.protocol and sasl.* (meander config shows them)",
                )

    def _on_error(self, error: KafkaError) -> None:
        """What librdkafka reports beside its answers, in `poll`."""
        if error.code() == KafkaError._ALL_BROKERS_DOWN:
            self._down = True
        elif refused(error):
            self._refusal = error


def admin(settings: Settings) -> Admin:
    """A client for questions at start. Raises SetupError for settings that it does not take, and as
    `Admin.greet`: other clients hear of a refused login when they are looked after."""
    try:
        made = Admin(settings)
    except KafkaException as error:
        raise translate(error, "Kafka settings") from None
    made.greet()
    return made


def expect_group(settings: Settings, group: str) -> None:
    """Raises SetupError for a group that the broker does not let this user see: a consumer would
    take the refusal for silence, and ask for ever."""
    asking = admin(settings)
    asked = asking.describe_consumer_groups([group], request_timeout=ANSWER)
    try:
        asked[group].result()
    except KafkaException as error:
        # That it is not there yet, or a broker that does not answer, shows elsewhere.
        if refused(error.args[0]):
            raise translate(error, f"consumer group {group!r}") from None


def _tuned(tuning: Values, settings: Settings) -> Values:
    """A user's settings ahead of a caller's, but for the two that bound sizes: the flow's own
    topics take larger records than a user may want, and no batch may exceed what a topic takes.

    >>> _tuned({"batch_size": 5_000}, {"batch.size": "90000", "message.max.bytes": "10"})
    {'message.max.bytes': 1000000, 'batch.size': 5000}
    """
    own = {"message.max.bytes": MESSAGE_MOST, **_dotted(tuning)}
    values = own | dict(settings)
    for name, bound in (("message.max.bytes", max), ("batch.size", min)):
        # What is no number the client refuses by itself, with its name.
        if name in own and name in settings and settings[name].isdecimal():
            values[name] = bound(int(own[name]), int(settings[name]))
    return values


def _dotted(tuning: Values) -> Values:
    return {name.replace("_", "."): value for name, value in tuning.items()}


class Contact:
    """Whether the brokers answer, told once for all clients of a process.

    A report of silence is not told at once: clients report late, and one whose report has waited
    in its queue would contradict another that has been answered since.
    """

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._silent_since: float | None = None
        self._told = False
        self._back_at = float("-inf")
        self._failure: MeanderError | None = None

    @property
    def lost(self) -> bool:
        """Whether no broker answered at the last try."""
        return self._silent_since is not None

    def on_error(self, error: KafkaError) -> None:
        """What librdkafka reports beside its answers; from any thread."""
        code = error.code()
        if code == KafkaError._ALL_BROKERS_DOWN:
            self._silent_since = self._silent_since or time.monotonic()
        elif error.fatal() or code in _REFUSED:
            self._failure = translate(error, f"Kafka at {self._bootstrap}")

    def heard(self) -> None:
        """A broker has answered."""
        since, self._silent_since = self._silent_since, None
        if since is not None and self._told:
            self._told, self._back_at = False, time.monotonic()
            seconds = self._back_at - since
            log.warning("broker_returned", bootstrap=self._bootstrap, seconds=round(seconds, 1))

    def check(self) -> None:
        """Tell of a silence that lasts. Raises what ended the contact for good, if anything has."""
        if self._failure is not None:
            raise self._failure
        since = self._silent_since
        if since is not None and not self._told:
            now = time.monotonic()
            if now - since >= GRACE and now - self._back_at >= QUIET:
                self._told = True
                log.warning("broker_lost", bootstrap=self._bootstrap)


_contacts: dict[str, Contact] = {}


def contact(settings: Settings) -> Contact:
    """This process's one contact with the brokers that the settings name; of any thread."""
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
    # A broker that starts may leave itself out of its cluster's metadata, and the client drops it.
    KafkaError._DESTROY_BROKER,
    KafkaError._UNKNOWN_BROKER,
}
_SETTLING = {
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
_LOST = {KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE}


def transient(error: KafkaError) -> bool:
    """Whether the client gets over it by itself."""
    return error.code() in _SILENT | _SETTLING or error.retriable()


def expired(error: KafkaError) -> bool:
    """Whether it says that there is no record at an offset any more."""
    return error.code() in _LOST


def refused(error: KafkaError) -> bool:
    """Whether the broker does not let this user."""
    return error.code() in _REFUSED


def absent(error: KafkaError) -> bool:
    """Whether it says that a topic or a partition is not there."""
    return error.code() in _MISSING


def answered(ask: Callable[[], T], concerns: str) -> T:
    """The answer to a question at start. Raises MeanderError if there is none in `ANSWER` seconds.

    A partition of a topic just made may have no leader yet, or one that does not know of it.
    """
    deadline = time.monotonic() + ANSWER
    while True:
        try:
            return ask()
        except KafkaException as error:
            passing = transient(error.args[0]) or absent(error.args[0])
            if not passing or time.monotonic() > deadline:
                raise translate(error, concerns) from None
            time.sleep(0.05)


def translate(
    error: KafkaError | KafkaException, concerns: str, bootstrap: str | None = None
) -> MeanderError:
    """What an error of Kafka means to the user; `bootstrap` is who was asked, where that is known.

    >>> print(translate(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED), "topic 'flights'"))
    topic 'flights': the broker refused access to the topic; have its administrator grant ...
    """
    reason = _refusal(error.args[0] if isinstance(error, KafkaException) else error)
    code, text = reason.code(), reason.str()
    if code in _REFUSED:
        return SetupError(
            concerns,
            _REFUSED[code],
            "have its administrator grant this user what is missing, or correct the settings "
            "security.protocol and sasl.* (meander config shows them)",
        )
    if code in _MISSING:
        return missing(concerns)
    if code in _SILENT:
        return unreachable(concerns, text, bootstrap)
    if transient(reason):
        return Unreachable(
            concerns,
            f"its broker is not ready ({text})",
            "look at the brokers of the cluster and at the topic's leaders",
        )
    if code == KafkaError._INVALID_ARG:
        return SetupError(concerns, text, "correct it: meander config shows where it comes from")
    if code == KafkaError.TOPIC_EXCEPTION:
        return SetupError(
            concerns,
            "that is no name of a topic",
            "use letters, digits, '.', '_' and '-' only, at most 249",
        )
    if code == KafkaError.INVALID_RECORD:
        return MeanderError(
            concerns,
            "the broker refuses a record, as a compacted topic does one without a key",
            "call key_by before the sink, or set the topic's cleanup.policy to delete",
        )
    if code == KafkaError.MSG_SIZE_TOO_LARGE:
        return MeanderError(
            concerns,
            "a record is larger than it takes",
            "raise its max.message.bytes, and message.max.bytes in the settings",
        )
    if code in _LOST:
        return MeanderError(
            concerns,
            f"the records to be read next are no longer on the broker ({text})",
            "lengthen its retention, and start the flow anew",
        )
    return MeanderError(concerns, f"Kafka answers {reason.name()}: {text}")


def _refusal(error: KafkaError) -> KafkaError:
    """Where a producer has ended because the broker refused a record, that refusal."""
    records = [KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_RECORD]
    known = map(KafkaError, [*records, *_REFUSED, *_MISSING])
    ended = error.code() == KafkaError._GAPLESS_GUARANTEE
    return next((one for one in known if ended and one.str() in error.str()), error)


def unreachable(concerns: str, reason: str, bootstrap: str | None) -> Unreachable:
    """The error for a cluster that does not answer; `bootstrap` is who was asked, if known.

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
    return Unreachable(concerns, f"no broker answers{at} ({reason})", remedy)


def missing(concerns: str) -> SetupError:
    """The error for a topic that is not there."""
    return SetupError(
        concerns,
        "it does not exist",
        "create it (meander topics create), or correct its name",
    )


def watermarks(consumer: Consumer, topic: str, partition: int) -> tuple[int, int]:
    """The first offset of a partition, and the one behind the last that is committed."""
    place = TopicPartition(topic, partition)
    # A client that is asked before it has met the broker may wait for 0.7 s, for nothing: asked
    # again it has the answer at once.
    patience = (min(SOON * 2**n, ANSWER / 4) for n in count())
    return answered(
        lambda: consumer.get_watermark_offsets(place, timeout=next(patience)), f"topic {topic!r}"
    )
