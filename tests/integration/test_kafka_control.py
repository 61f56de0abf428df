"""Control and decisions: commands reach the flow once, decisions are durable in order."""

from __future__ import annotations

import pytest

from connectors.client import admin as admin_client
from connectors.control import ControlTopic, Decisions, RawCommand, give
from connectors.topics import Names, ensure_internal, group
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
    return ControlTopic(rig.settings, names.control, group(rig.prefix, "flow"))


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


def test_a_command_that_is_given_is_known_by_its_place(rig: Rig, names: Names) -> None:
    topic = control(rig, names)
    places = [give(rig.settings, names.control, text) for text in (b"first", b"last")]
    assert [(raw.offset, raw.value) for raw in commands(topic, 2)] == [
        (places[0], b"first"),
        (places[1], b"last"),
    ]
    topic.close()
