"""The status topic: what is told can be read, soon after a week too, and a flow has one driver."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import msgspec
import pytest

from meander.app.cli.follow import follow
from meander.app.status.overview import overview
from meander.connectors.kafka.client import ConsumedMessage, Settings, admin
from meander.connectors.topics import status
from meander.connectors.topics.internal_topics import TopicNames, ensure_internal
from meander.connectors.topics.status import Holder, StatusReader, StatusRecord, StatusTopic, holder
from meander.schemas.control import Migrate
from meander.schemas.errors import SetupError
from meander.schemas.status import (
    Accepted,
    BinMoved,
    Claimed,
    CommandRejected,
    Completed,
    Event,
    Failed,
    Finished,
    Heartbeat,
    Migration,
    Started,
)
from tests.support.kafka.brokers import Broker
from tests.support.kafka.connector_rig import Rig
from tests.support.kafka.topics import Record, await_records, consume_all, produce

MANY = 100_000
"""Heartbeats: more than a day of them."""
DRIVERS = 6


@pytest.fixture
def rig(broker: Broker, prefix: str) -> Rig:
    return Rig(broker.bootstrap, prefix)


@pytest.fixture
def names(rig: Rig) -> TopicNames:
    return ensure_internal(admin(rig.settings), rig.prefix, "flow")


@pytest.fixture
def told(rig: Rig, names: TopicNames) -> Iterator[StatusTopic]:
    topic = StatusTopic(rig.settings, names.status)
    yield topic
    topic.close()


@pytest.fixture
def week(rig: Rig, names: TopicNames) -> Iterator[StatusReader]:
    """A flow that has run for long: one migration is under way since the beginning."""
    old: list[Event] = [
        Claimed(driver="one", execution=1, heartbeat_timeout=10.0),
        alive(),
        Accepted(id="done", offset=0, time=5, at=5 << 20, strategy="all-at-once", bins=[7]),
        Completed(id="done", ms=1.0, bins=1, bytes=1),
        Accepted(id="slow", offset=1, time=5, at=5 << 20, strategy="fluid", bins=[1, 2, 3]),
        moved("slow", 1),
    ]
    beat = alive(moving=[Migration(id="slow", state="moving", at_ms=5, bins=3, moved=1)])
    tell_all(rig, names, [*old, *[beat] * MANY, moved("slow", 2)])
    with closing(reader(rig, names)) as opened:
        yield opened


def alive(
    driver: str = "one", *, heartbeat_timeout: float = 10.0, moving: Sequence[Migration] = ()
) -> Heartbeat:
    return Heartbeat(
        driver=driver, execution=1, workers=2, heartbeat_timeout=heartbeat_timeout, lag=3,
        counters={"read": 4}, registered=2, frontiers={"sink": 5}, bins=[128, 128],
        inflight=[0, 0], moving=list(moving), omitted=0,
    )  # fmt: skip


def moved(name: str, bin: int) -> BinMoved:
    fields = {"id": name, "bin": bin, "from": 0, "to": 1, "at": 1, "bytes": 1, "keys": 1, "ms": 1.0}
    return msgspec.convert(fields, BinMoved)


def rejected(name: str, offset: int = 0) -> CommandRejected:
    return CommandRejected(id=name, offset=offset, reason="no")


def tell(topic: StatusTopic, *events: Event) -> None:
    for event in events:
        topic.write(event)
    topic.flush(30)


def tell_all(rig: Rig, names: TopicNames, events: Sequence[Event]) -> None:
    """As `tell`, for very many."""
    produce(rig.bootstrap, names.status, (Record(event.to_bytes()) for event in events))


def reader(rig: Rig, names: TopicNames) -> StatusReader:
    return StatusReader(rig.settings, names.status, "flow")


def recent(rig: Rig, names: TopicNames) -> list[Event]:
    with closing(reader(rig, names)) as opened:
        return [one.event for one in opened.recent()]


def whole(rig: Rig, names: TopicNames) -> list[Event]:
    with closing(reader(rig, names)) as opened:
        return [one.event for one in opened.all()]


# -- what is told is read


def test_events_are_read_in_order(rig: Rig, names: TopicNames, told: StatusTopic) -> None:
    said: list[Event] = [
        Started(driver="one", execution=1, workers=2),
        rejected("m1"),
        alive(),
        Completed(id="m2", ms=1.5, bins=2, bytes=3),
    ]
    tell(told, *said)
    assert whole(rig, names) == recent(rig, names) == said
    keys = [record.key for record in consume_all(rig.bootstrap, names.status)]
    assert keys == [b"one", b"m1", b"one", b"m2"]


def test_following_begins_where_the_topic_ended(
    rig: Rig, names: TopicNames, told: StatusTopic
) -> None:
    tell(told, alive())
    with closing(reader(rig, names)) as opened:
        assert [one.event for one in opened.recent()] == [alive()]
        following = opened.follow()
        assert next(following) is None
        end = Finished(driver="one", execution=1, counters={})
        tell(told, end)
        assert next(one for one in following if one is not None).event == end


def test_an_empty_status_topic_has_no_events(rig: Rig, names: TopicNames) -> None:
    assert whole(rig, names) == recent(rig, names) == []


def test_a_flow_that_has_never_run_is_a_sentence_that_names_the_broker(rig: Rig) -> None:
    sentence = f"flow 'nobody': no flow of that name has run on Kafka at {rig.bootstrap}; start it"
    with pytest.raises(SetupError, match=sentence):
        StatusReader(rig.settings, rig.prefix + "nobody.status", "nobody")


# -- however long a flow has run, little is read


def test_after_very_many_heartbeats_few_events_are_read_and_what_moves_is_known(
    week: StatusReader,
) -> None:
    assert week.high - week.low > MANY
    read = week.recent()
    assert len(read) == status.RECENT
    seen = overview("flow", read)
    last = seen.heartbeat
    assert (seen.state, last.counters, last.bins) == ("running", {"read": 4}, [128, 128])
    assert seen.migrations["slow"].moved == 2, "of 3 bins, one of them after the last heartbeat"
    assert seen.since_ms == read[0].millis, "what ended before is not known, and that is said"

    everything = overview("flow", week.all())
    assert everything.migrations.keys() == {"done", "slow"}
    assert everything.since_ms is None


def test_a_migration_is_followed_from_the_end_of_the_topic(
    week: StatusReader, rig: Rig, names: TopicNames, monkeypatch: pytest.MonkeyPatch
) -> None:
    offsets: list[int] = []
    event = StatusReader._event

    def noted(self: StatusReader, message: ConsumedMessage) -> Event | None:
        offsets.append(message.offset())
        return event(self, message)

    monkeypatch.setattr(StatusReader, "_event", noted)
    tell_all(rig, names, [alive()])
    with ThreadPoolExecutor() as pool:
        following = pool.submit(list, follow(rig.settings, names, "flow", command("mine")))
        commanded(rig, names, 1)
        tell_all(rig, names, [rejected("mine")])
        assert following.result(60) == [rejected("mine")]
    assert offsets == list(range(week.high + 1 - status.RECENT, week.high + 2))


def test_what_another_version_has_written_is_passed_over_and_named(
    rig: Rig, names: TopicNames, told: StatusTopic, caplog: pytest.LogCaptureFixture
) -> None:
    tell(told, alive())
    foreign = [Record(b'{"type": "from the future"}'), Record(b"\xff"), Record(None)]
    produce(rig.bootstrap, names.status, foreign)
    tell(told, rejected("m"))
    reader = StatusReader(rig.settings, names.status, "flow")
    with closing(reader):
        events = [one.event for one in reader.all()]
    assert events == [alive(), rejected("m")]
    assert [f"offset={n} reason=" in caplog.text for n in (1, 2, 3)] == [True] * 3


def test_a_heartbeat_is_found_behind_many_other_events(
    rig: Rig, names: TopicNames, told: StatusTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status, "RECENT", 4)
    tell(told, rejected("m"), rejected("m"), alive(), *[rejected("m")] * 50)
    assert recent(rig, names) == [rejected("m"), rejected("m"), alive(), *[rejected("m")] * 50]
    tell(told, alive())
    assert recent(rig, names) == [*[rejected("m")] * 3, alive()]


# -- a command's events are its own


def command(name: str) -> Migrate:
    return Migrate(type="migrate", id=name, worker=1, bins=[1])


def commanded(rig: Rig, names: TopicNames, count: int) -> None:
    await_records(rig.bootstrap, names.control, lambda records: len(records) == count)


def test_another_command_of_the_same_id_is_not_taken_for_this_one(
    rig: Rig, names: TopicNames, told: StatusTopic
) -> None:
    """The first of that id lies at offset 0 and is under way; ours, at 1, is rejected."""
    produce(rig.bootstrap, names.control, [Record(command("m").model_dump_json().encode())])
    first = Accepted(id="m", offset=0, time=5, at=5 << 20, strategy="fluid", bins=[1, 2])
    tell(told, alive(), first, moved("m", 1))
    with ThreadPoolExecutor() as pool:
        following = pool.submit(list, follow(rig.settings, names, "flow", command("m")))
        commanded(rig, names, 2)
        done = Completed(id="m", ms=1.0, bins=2, bytes=2)
        tell(told, moved("m", 2), done, rejected("m", 1))
        assert following.result(60) == [rejected("m", 1)]


def test_the_rejection_of_a_later_command_of_the_same_id_does_not_end_this_one(
    rig: Rig, names: TopicNames, told: StatusTopic
) -> None:
    tell(told, alive())
    ours = Accepted(id="m", offset=0, time=5, at=5 << 20, strategy="fluid", bins=[1])
    done = Completed(id="m", ms=1.0, bins=1, bytes=1)
    with ThreadPoolExecutor() as pool:
        following = pool.submit(list, follow(rig.settings, names, "flow", command("m")))
        commanded(rig, names, 1)
        tell(told, ours, rejected("m", 1), moved("m", 1), done)
        assert following.result(60) == [ours, moved("m", 1), done]


# -- one driver


def claimed(driver: str, heartbeat_timeout: float = 10.0) -> Claimed:
    return Claimed(driver=driver, execution=1, heartbeat_timeout=heartbeat_timeout)


def claim_as(rig: Rig, names: TopicNames, driver: str) -> Holder:
    with closing(StatusTopic(rig.settings, names.status)) as status:
        return status.claim("flow", claimed(driver))


@pytest.mark.parametrize("time", range(3))
def test_of_drivers_that_start_at_once_exactly_one_goes_on(
    rig: Rig, names: TopicNames, time: int
) -> None:
    together = threading.Barrier(DRIVERS)

    def start(driver: str) -> str:
        together.wait()
        return claim_as(rig, names, driver).driver

    drivers = [f"driver {time}.{number}" for number in range(DRIVERS)]
    with ThreadPoolExecutor(DRIVERS) as pool:
        holders = list(pool.map(start, drivers))
    assert len(set(holders)) == 1, "all agree on who has the flow"
    first = next(e for e in whole(rig, names) if isinstance(e, Claimed))
    assert holders[0] == first.driver


@pytest.mark.parametrize("word", [claimed("one", 600.0), alive("one", heartbeat_timeout=600.0)])
def test_a_driver_with_heartbeats_in_time_keeps_the_flow(
    rig: Rig, names: TopicNames, told: StatusTopic, word: Event
) -> None:
    tell(told, word)
    found = claim_as(rig, names, "two")
    assert (found.driver, found.heartbeat_timeout) == ("one", 600.0)
    assert claim_as(rig, names, "three").driver == "one", "a claim in vain counts for nothing"


def test_who_wakes_up_behind_its_lease_has_the_flow_no_more() -> None:
    """Though its heartbeats go on, until the one that has it has ended."""
    words: list[Event] = [
        alive("one", heartbeat_timeout=1.0), claimed("two"), alive("one"), alive("two"),
        alive("one"),
    ]  # fmt: skip
    told = [StatusRecord(n, 2_000 * n, word) for n, word in enumerate(words)]
    assert [found.driver for n in range(5) if (found := holder(told[: n + 1]))] == [
        "one", "two", "two", "two", "two",
    ]  # fmt: skip


def test_a_refused_driver_leaves_the_status_of_the_first_as_it_was(
    rig: Rig, names: TopicNames, told: StatusTopic
) -> None:
    tell(told, claimed("one"), alive("one"))
    with closing(reader(rig, names)) as opened:
        before = overview("flow", opened.recent())
    assert claim_as(rig, names, "two").driver == "one"
    with closing(reader(rig, names)) as opened:
        after = overview("flow", opened.recent())
    assert (after.state, after.heartbeat_ms) == ("running", before.heartbeat_ms)


@pytest.mark.parametrize("word", [claimed("one", 0.0), alive("one", heartbeat_timeout=0.0)])
def test_a_driver_that_was_silent_for_its_own_lease_loses_the_flow(
    rig: Rig, names: TopicNames, told: StatusTopic, word: Event
) -> None:
    tell(told, word)
    assert claim_as(rig, names, "two").driver == "two"


@pytest.mark.parametrize(
    "end",
    [
        Finished(driver="one", execution=1, counters={}),
        Failed(driver="one", execution=1, reason="worker 1 died"),
    ],
)
def test_a_driver_that_reported_its_end_leaves_the_flow_to_the_next(
    rig: Rig, names: TopicNames, told: StatusTopic, end: Event
) -> None:
    tell(told, claimed("one"), alive("one"), claimed("in vain"), end)
    assert claim_as(rig, names, "two").driver == "two"


def test_a_claim_whose_rival_ends_meanwhile_is_made_again(
    rig: Rig, names: TopicNames, told: StatusTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    tell(told, claimed("one"), alive("one"))
    original = StatusReader.__init__
    ends: list[Event] = [Finished(driver="one", execution=1, counters={})]

    def after_its_end(self: StatusReader, settings: Settings, topic: str, flow: str) -> None:
        tell(told, *ends)
        ends.clear()
        original(self, settings, topic, flow)

    monkeypatch.setattr(StatusReader, "__init__", after_its_end)
    assert claim_as(rig, names, "two").driver == "two"
