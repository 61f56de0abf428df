"""Control and decisions: commands reach the flow once, decisions are durable in order."""

from __future__ import annotations

import random

import pytest
from confluent_kafka import KafkaException

from meander.app.recovery.decision_log import DecisionLog
from meander.app.recovery.restart import read_decisions
from meander.connectors.kafka.client import Admin
from meander.connectors.kafka.client import admin as admin_client
from meander.connectors.kafka.topic_metadata import group
from meander.connectors.topics.control import ControlTopic, DecisionTopic, RawCommand, submit
from meander.connectors.topics.internal_topics import TopicNames, ensure_internal
from meander.dataflow.api.plan import MAX_BINS
from meander.dataflow.control.decisions import CommandsDoneDecision, Decision, StartDecision
from meander.dataflow.control.reassignment import Moves
from meander.state.keys.bins import MAX_BITS
from meander.state.keys.ids import Bin, ExecutionId, WorkerId
from tests.support.kafka.brokers import Broker
from tests.support.kafka.connector_rig import Rig
from tests.support.kafka.topics import PATIENCE, Record, consume_all, produce, until


@pytest.fixture
def rig(broker: Broker, prefix: str) -> Rig:
    return Rig(broker.bootstrap, prefix)


@pytest.fixture
def names(rig: Rig) -> TopicNames:
    client = admin_client(rig.settings)
    return ensure_internal(client, rig.prefix, "flow")


def control(rig: Rig, names: TopicNames, done: CommandsDoneDecision | None = None) -> ControlTopic:
    topic = ControlTopic(rig.settings, names.control, group(rig.prefix, "flow"))
    topic.start(done)
    return topic


def commands(topic: ControlTopic, count: int) -> list[RawCommand]:
    found: list[RawCommand] = []

    def enough() -> bool:
        found.extend(topic.poll())
        return len(found) >= count

    until(enough, f"{count} commands")
    return found


def command(text: bytes) -> Record:
    return Record(text)


def test_a_first_start_obeys_only_what_comes_then(rig: Rig, names: TopicNames) -> None:
    produce(rig.bootstrap, names.control, [command(b"before")])
    topic = control(rig, names)
    produce(rig.bootstrap, names.control, [command(b"first"), Record(None), command(b"last")])
    found = commands(topic, 3)
    assert [raw.value for raw in found] == [b"first", None, b"last"]
    assert [raw.offset for raw in found] == [1, 2, 3]
    topic.close()


@pytest.mark.parametrize("expired", [False, True])
def test_a_later_start_goes_on_where_its_caller_says(
    rig: Rig, names: TopicNames, expired: bool
) -> None:
    """Whatever has become of the group's offset, which Kafka forgets after a week."""
    topic = control(rig, names)
    produce(rig.bootstrap, names.control, [command(b"done"), command(b"not yet")])
    topic.commit(commands(topic, 2)[1].offset)
    topic.close()
    produce(rig.bootstrap, names.control, [command(b"while down")])
    if expired:
        client = admin_client(rig.settings)
        name = group(rig.prefix, "flow")
        until(lambda: forgotten(client, name), "the group is forgotten")
    topic = control(rig, names, CommandsDoneDecision(1))
    assert [raw.value for raw in commands(topic, 2)] == [b"not yet", b"while down"]
    topic.close()


def test_a_start_reads_from_the_first_command_that_is_not_done(rig: Rig, names: TopicNames) -> None:
    produce(rig.bootstrap, names.control, [command(b"done"), command(b"waits"), command(b"done")])
    topic = control(rig, names, CommandsDoneDecision(3, (1,)))
    assert [raw.offset for raw in commands(topic, 2)] == [1, 2]
    topic.close()


def forgotten(client: Admin, name: str) -> bool:
    try:
        client.delete_consumer_groups([name])[name].result(PATIENCE)
    except KafkaException:
        # It counts as not empty for a moment.
        return False
    return True


def test_a_start_whose_place_is_no_more_reads_all_there_is(rig: Rig, names: TopicNames) -> None:
    """The topic was made anew, and nothing on it has been obeyed."""
    produce(rig.bootstrap, names.control, [command(b"first")])
    topic = ControlTopic(rig.settings, names.control, group(rig.prefix, "flow"))
    assert topic.start(CommandsDoneDecision(7, (0,))) == CommandsDoneDecision(0)
    assert [raw.value for raw in commands(topic, 1)] == [b"first"]
    topic.close()


def test_a_start_at_which_nothing_came_counts_as_the_first(rig: Rig, names: TopicNames) -> None:
    control(rig, names).close()
    produce(rig.bootstrap, names.control, [command(b"while down")])
    topic = control(rig, names)
    assert [raw.value for raw in commands(topic, 1)] == [b"while down"]
    topic.close()


def test_polling_an_empty_control_topic_yields_nothing(rig: Rig, names: TopicNames) -> None:
    topic = control(rig, names)
    assert [topic.poll() for _ in range(10)] == [[]] * 10
    topic.close()


def test_decisions_call_back_in_order_once_they_are_durable(rig: Rig, names: TopicNames) -> None:
    decisions = DecisionTopic(rig.settings, names.decisions)
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


def test_the_largest_decisions_are_read_as_they_were_written(rig: Rig, names: TopicNames) -> None:
    """A record with eight groups' owners at random, and one with a group's bins in any order."""
    rng, life = random.Random(1), ExecutionId(5)
    owners = tuple(WorkerId(rng.randrange(64)) for _ in range(MAX_BINS))
    bins = [Bin(number) for number in range(MAX_BINS - (1 << MAX_BITS), MAX_BINS)]
    rng.shuffle(bins)
    decided: list[Decision] = [
        StartDecision(7, owners, 64),
        Moves("m", 8, WorkerId(63), tuple(bins)),
    ]
    decisions = DecisionTopic(rig.settings, names.decisions)
    durable = [DecisionLog(decisions, life)(one) for one in decided]

    def all_durable() -> bool:
        decisions.pump()
        return durable[-1]()

    until(all_durable, "both are durable")
    decisions.close()
    assert [*read_decisions(rig.settings, names.decisions)] == [(life, one) for one in decided]


def test_a_command_that_is_given_is_known_by_its_place(rig: Rig, names: TopicNames) -> None:
    topic = control(rig, names)
    places = [submit(rig.settings, names.control, text) for text in (b"first", b"last")]
    assert [(raw.offset, raw.value) for raw in commands(topic, 2)] == [
        (places[0], b"first"),
        (places[1], b"last"),
    ]
    topic.close()
