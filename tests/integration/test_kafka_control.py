"""Control, decisions, status: commands reach the flow once, and what it says can be read."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from connectors import status
from connectors.client import admin as admin_client
from connectors.control import ControlTopic, Decisions, RawCommand
from connectors.status import StatusTopic, Told, last_heartbeat, read_status
from connectors.topics import Names, ensure_internal
from schemas.errors import SetupError
from schemas.status import (
    CommandRejected,
    Completed,
    Event,
    Failed,
    Finished,
    Heartbeat,
    Started,
)
from tests.brokers import Broker
from tests.kafka_rig import Rig
from tests.kafka_tools import Record, consume_all, produce, until


@pytest.fixture
def rig(broker: Broker, prefix: str) -> Rig:
    return Rig(broker.bootstrap, prefix)


@pytest.fixture
def names(rig: Rig) -> Names:
    client = admin_client(rig.settings)
    return ensure_internal(client, rig.prefix, "flow")


def control(rig: Rig, names: Names) -> ControlTopic:
    return ControlTopic(rig.settings, names.control, f"{rig.prefix}flow")


def commands(topic: ControlTopic, count: int) -> list[RawCommand]:
    found: list[RawCommand] = []

    def enough() -> bool:
        found.extend(topic.poll())
        return len(found) >= count

    until(enough, f"{count} commands")
    return found


def command(text: bytes) -> Record:
    return Record(text)


def test_a_first_start_obeys_only_what_comes_then(rig: Rig, names: Names) -> None:
    produce(rig.bootstrap, names.control, [command(b"before")])
    topic = control(rig, names)
    produce(rig.bootstrap, names.control, [command(b"first"), Record(None), command(b"last")])
    found = commands(topic, 3)
    assert [raw.value for raw in found] == [b"first", None, b"last"]
    assert [raw.offset for raw in found] == [1, 2, 3]
    topic.close()


def test_a_later_start_goes_on_behind_what_was_dealt_with(rig: Rig, names: Names) -> None:
    topic = control(rig, names)
    produce(rig.bootstrap, names.control, [command(b"done"), command(b"not yet")])
    topic.done(commands(topic, 2)[0].offset)
    topic.close()
    produce(rig.bootstrap, names.control, [command(b"while down")])
    topic = control(rig, names)
    assert [raw.value for raw in commands(topic, 2)] == [b"not yet", b"while down"]
    topic.close()


def test_a_start_at_which_nothing_came_counts_as_the_first(rig: Rig, names: Names) -> None:
    control(rig, names).close()
    produce(rig.bootstrap, names.control, [command(b"while down")])
    topic = control(rig, names)
    assert [raw.value for raw in commands(topic, 1)] == [b"while down"]
    topic.close()


def test_polling_an_empty_control_topic_yields_nothing(rig: Rig, names: Names) -> None:
    topic = control(rig, names)
    assert [topic.poll() for _ in range(10)] == [[]] * 10
    topic.close()


def test_decisions_call_back_in_order_once_they_are_durable(rig: Rig, names: Names) -> None:
    decisions = Decisions(rig.settings, names.decisions)
    durable: list[int] = []
    for i in range(20):
        decisions.append(b"%d" % i, lambda i=i: durable.append(i))  # type: ignore[misc]

    def all_durable() -> bool:
        decisions.pump()
        return len(durable) == 20

    until(all_durable, "all decisions are durable")
    decisions.close()
    assert durable == list(range(20))
    found = consume_all(rig.bootstrap, names.decisions)
    assert [record.value for record in found] == [b"%d" % i for i in range(20)]


ALIVE = Heartbeat(
    driver="one", incarnation=1, workers=2, lease=10.0, lag=3, counters={"read": 4},
    frontiers={"sink": 5}, bins=[128, 128],
)  # fmt: skip


@pytest.fixture
def told(rig: Rig, names: Names) -> Iterator[StatusTopic]:
    topic = StatusTopic(rig.settings, names.status)
    yield topic
    topic.close()


def tell(topic: StatusTopic, *events: Event) -> None:
    for event in events:
        topic.write(event)
    topic.flush(30)


def events(found: Iterator[Told | None]) -> list[Event]:
    return [one.event for one in found if one is not None]


def test_what_was_told_is_read_in_order(rig: Rig, names: Names, told: StatusTopic) -> None:
    said: list[Event] = [
        Started(driver="one", incarnation=1, workers=2),
        CommandRejected(id="m1", reason="there is no worker 7"),
        ALIVE,
        Completed(id="m2", ms=1.5, bins=2, bytes=3),
    ]
    tell(told, *said)
    assert events(read_status(rig.settings, names.status, follow=False)) == said
    keys = [record.key for record in consume_all(rig.bootstrap, names.status)]
    assert keys == [b"one", b"m1", b"one", b"m2"]


def test_following_goes_on_with_what_comes(rig: Rig, names: Names, told: StatusTopic) -> None:
    tell(told, ALIVE)
    following = read_status(rig.settings, names.status, follow=True)
    assert next(one for one in following if one is not None).event == ALIVE
    assert next(following) is None
    tell(told, Finished(driver="one", incarnation=1, counters={}))
    assert next(one for one in following if one is not None).event.type == "finished"
    following.close()  # type: ignore[attr-defined]


def test_an_empty_status_topic_has_no_events_and_no_heartbeat(rig: Rig, names: Names) -> None:
    assert events(read_status(rig.settings, names.status, follow=False)) == []
    assert last_heartbeat(rig.settings, names.status) is None


def test_the_last_heartbeat_is_found_behind_many_other_events(
    rig: Rig, names: Names, told: StatusTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status, "STEP", 4)
    tell(told, ALIVE, *[CommandRejected(id=f"m{i}", reason="no") for i in range(50)])
    found = last_heartbeat(rig.settings, names.status)
    assert found is not None
    assert (found.offset, found.event) == (0, ALIVE)


@pytest.mark.parametrize(
    "end",
    [
        Finished(driver="one", incarnation=1, counters={}),
        Failed(driver="one", incarnation=1, reason="worker 1 died"),
    ],
)
def test_a_driver_that_said_it_has_ended_has_no_heartbeat(
    rig: Rig, names: Names, told: StatusTopic, end: Event
) -> None:
    tell(told, ALIVE, end)
    assert last_heartbeat(rig.settings, names.status) is None
    tell(told, ALIVE)
    assert last_heartbeat(rig.settings, names.status) is not None


def test_a_missing_status_topic_is_a_sentence(rig: Rig) -> None:
    with pytest.raises(SetupError, match="it does not exist"):
        last_heartbeat(rig.settings, rig.prefix + "nowhere")
