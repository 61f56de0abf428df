"""Topics of a list and of a pattern, merged into one stream and routed to topics by country: each
result is there once, however often a worker dies, and a new topic is read from the next run on."""

from __future__ import annotations

import json
import signal
from collections import Counter
from pathlib import Path

from meander.connectors.topics.internal_topics import topic_names
from meander.state.times.time import to_millis
from tests.support.kafka.brokers import Broker
from tests.support.kafka.topics import (
    PATIENCE,
    Record,
    consume_all,
    create_topic,
    produce,
    time_of,
    until,
)
from tests.support.process.flow_process import FlowProcess, kill, meander, run_command

FLOW = """
from meander import Checkpointing, Flow, KafkaSink, KafkaSource


def number(state, record):
    place = [record.topic.removeprefix("{prefix}"), record.partition, record.offset]
    state += 1
    return state, dict(country=record.key, n=state, at=place, ms=record.timestamp_ms,
                       trace=dict(record.headers)["trace"].decode())


flow = Flow("routes", delivery="exactly_once", checkpoints=Checkpointing(0.5))
sales = flow.source(KafkaSource(["{prefix}web", "{prefix}shop"], metadata=True), "sales")
orders = flow.source(KafkaSource(pattern="{prefix}orders-.*", metadata=True), "orders")
numbered = flow.merge(sales, orders).key_by(lambda record: record.key).fold("n", int, number)
numbered.sink(KafkaSink(
    lambda v: f"{prefix}out-{{v['country']}}", topics="{prefix}out-..",
    key=lambda v: v["at"][0], headers=lambda v: {{"trace": v["trace"]}},
))
"""
TOPICS = "web", "shop", "orders-m"
COUNTRIES = "de", "us"
START = 1_700_000_000_000
ROUND = 60
"""The records that a round puts on each topic."""


class Routes:
    """The topics of the flow, and what is to be on those of its results."""

    def __init__(self, broker: Broker, prefix: str) -> None:
        self._bootstrap, self._prefix = broker.bootstrap, prefix
        self.fed = Counter[str]()
        self._next: dict[tuple[str, int], int] = Counter()
        self.wanted: dict[tuple[str, int, int], tuple[str, int, str]] = {}
        """The country, the milliseconds and the trace of the record at each place."""
        for topic in (*TOPICS, *(f"out-{country}" for country in COUNTRIES)):
            create_topic(self._bootstrap, prefix + topic, 2)

    def feed(self, topic: str, countries: tuple[str, ...] = COUNTRIES) -> None:
        records = []
        for n in range(ROUND):
            at, ms = self.fed[topic], START + self.fed[topic]
            country, partition = countries[n % len(countries)], n % 2
            trace = f"{topic}-{at}"
            headers: list[tuple[str, str | bytes | None]] = [("trace", trace)]
            value = json.dumps({"n": at}).encode()
            records.append(Record(value, country.encode(), partition, ms, headers))
            place = topic, partition, self._next[topic, partition]
            self._next[topic, partition] += 1
            self.wanted[place] = country, ms, trace
            self.fed[topic] += 1
        produce(self._bootstrap, self._prefix + topic, records)

    def results(self) -> list[tuple[str, Record]]:
        """Return the committed results, each with the country of its topic."""
        return [
            (country, record)
            for country in COUNTRIES
            for record in consume_all(self._bootstrap, f"{self._prefix}out-{country}")
        ]

    def until_written(self, flow: FlowProcess) -> None:
        def written() -> bool:
            assert flow.process.poll() is None, flow.said
            return len(self.results()) >= len(self.wanted)

        until(written, f"all is written: {flow.said}")

    def check(self) -> None:
        """Raise AssertionError unless each record has one result, on the topic of its country."""
        found, numbers = {}, Counter[tuple[str, int]]()
        for country, record in self.results():
            result, headers = json.loads(record.value or b""), dict(record.headers)
            place = tuple(result["at"])
            assert place not in found, f"the result of {place} is there twice"
            assert result["country"] == country and (record.key or b"").decode() == place[0]
            assert headers["trace"] == result["trace"].encode()
            assert record.timestamp == to_millis(time_of(record)) >= result["ms"]
            found[place] = country, result["ms"], result["trace"]
            numbers[country, result["n"]] += 1
        assert found == self.wanted
        per_country = Counter(country for country, _, _ in found.values())
        assert numbers == {(c, n): 1 for c in per_country for n in range(1, per_country[c] + 1)}


def stop(flow: FlowProcess) -> None:
    flow.process.send_signal(signal.SIGINT)
    flow.exit_code()


def test_merged_topics_are_routed_once_each_whatever_dies(
    broker: Broker, prefix: str, tmp_path: Path
) -> None:
    """I5: also over later runs, which read new topics whose names come first."""
    module = tmp_path / "flow.py"
    module.write_text(FLOW.format(prefix=prefix))
    routes = Routes(broker, prefix)
    command = run_command(module, prefix, PATIENCE, "--workers", "2")
    for topic in TOPICS:
        routes.feed(topic)
    with meander(tmp_path, broker.bootstrap, *command) as flow:
        routes.until_written(flow)
        for worker in (1, 0):
            executions = len(flow.of("started"))
            for topic in TOPICS:
                routes.feed(topic)
            kill(flow.workers[worker])
            until(lambda: len(flow.of("started")) > executions, f"it restarts: {flow.said}")  # noqa: B023
            routes.until_written(flow)
        create_topic(broker.bootstrap, f"{prefix}orders-c", 2)
        waits = f"topic_not_read source=orders topic={prefix}orders-c"
        until(lambda: waits in flow.said, "the driver warns of the new topic")
        stop(flow)
    routes.check()
    with meander(tmp_path, broker.bootstrap, *command) as flow:
        for topic in (*TOPICS, "orders-c"):
            routes.feed(topic)
        routes.until_written(flow)
        stop(flow)
    routes.check()
    create_topic(broker.bootstrap, f"{prefix}orders-a", 2)
    for topic in (*TOPICS, "orders-c", "orders-a"):
        routes.feed(topic)
    produce(broker.bootstrap, f"{prefix}web",
            [Record(b"{}", b"fr", 0, START + 10_000, [("trace", "lost")])])  # fmt: skip
    with meander(tmp_path, broker.bootstrap, *command, "--until-end") as flow:
        assert flow.exit_code() == 0, flow.said
    routes.check()
    (letter,) = consume_all(broker.bootstrap, topic_names(prefix, "routes").dead)
    reason = str(dict(letter.headers)["meander.reason"])
    assert f"topic '{prefix}out-fr'" in reason and "it does not exist" in reason
