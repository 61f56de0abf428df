"""The shipped flow that finds late flights as a process, the flights that it reads, and the check
of its alerts by a single thread."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from meander.app.demo import data
from meander.app.flows import anomalies
from meander.app.flows.anomalies import Arrival, Beyond, Delays, Score, score
from meander.connectors.topics.internal_topics import topic_names
from tests.support.kafka.brokers import Broker
from tests.support.kafka.topics import Record, consume_all, create_topic, order_of, produce, until
from tests.support.process.flow_process import FlowProcess, meander, run_command

HEARTBEAT_TIMEOUT = 4
PARTITIONS = 3
CHUNK = 1000
"""The number of flights that are fed before the flow has to answer."""
FIRST_LIMIT = Beyond().limit


class Place(NamedTuple):
    """The place of a flight in the order of the flow."""

    time: int
    partition: int
    offset: int


class LateFlights:
    """A flow over the flights of 2013 whose limit a policy changes."""

    def __init__(self, broker: Broker, prefix: str, folder: Path) -> None:
        self._bootstrap, self._prefix, self._folder = broker.bootstrap, prefix, folder
        self._source, self._scores, self._alerts = anomalies.topics(prefix)
        self._flights = data.load(data.unpack(folder), PARTITIONS)
        self._fed = 0
        for topic in self._source, self._scores, self._alerts:
            create_topic(self._bootstrap, topic, PARTITIONS)

    def run(self, *options: str) -> list[str]:
        """Return the words that run the flow."""
        return run_command(Path(anomalies.__file__), self._prefix, HEARTBEAT_TIMEOUT, *options)

    @property
    def variables(self) -> dict[str, str]:
        """Return the environment in which the flow runs."""
        return {"MEANDER_FLIGHTS_PREFIX": self._prefix}

    def feed_until(self, flow: FlowProcess, enough: Callable[[], bool]) -> None:
        """Feed flights, a chunk after the flow has answered the last one."""
        while not enough():
            assert self._fed < len(self._flights), f"no flights are left: {flow.said}"
            self.feed(flow)

    def feed(self, flow: FlowProcess) -> None:
        """Feed a chunk of flights, and wait for the flow's answer."""
        flights, some = self._flights, range(self._fed, self._fed + CHUNK)
        records = [
            Record(
                flights.values[n], flights.keys[n], int(flights.partitions[n]),
                headers=[("time", b"%d" % flights.times[n])],
            )
            for n in some
        ]  # fmt: skip
        produce(self._bootstrap, self._source, records)
        self._fed += CHUNK
        known = sum(self._arrival(n)["arr_delay"] is not None for n in range(self._fed))

        def answered() -> bool:
            assert flow.process.poll() is None, flow.said
            return len(consume_all(self._bootstrap, self._scores)) >= known

        until(answered, f"{known} flights have a score: {flow.said}")

    def history(self) -> list[dict[str, object]]:
        """Return the plans that were applied, by the command that lists them."""
        words = ("plan", "history", "anomalies", "--prefix", self._prefix)
        with meander(self._folder, self._bootstrap, *words, **self.variables) as command:
            assert command.exit_code() == 0, command.said
        return command.events

    def limits(self) -> dict[int, float]:
        """Return the limit from each logical time on, as the flow has reported it."""
        told = consume_all(self._bootstrap, topic_names(self._prefix, "anomalies").status)
        events = [json.loads(one.value or b"") for one in told]
        changes = [one for one in events if one["type"] == "plan_in_force"]
        return {
            one["at"]: float(one["versions"]["alert"].removeprefix("Beyond(limit=").rstrip(")"))
            for one in changes
            if "alert" in one["versions"]
        }

    def check(self) -> dict[float, int]:
        """Raise AssertionError unless the scores and alerts are those of a single thread, which
        applies each limit from its time on. Return how many alerts each limit has given."""
        scores, alerts = self._results(self._scores), self._results(self._alerts)
        limits = {-1: FIRST_LIMIT} | self.limits()
        states: dict[str, Delays] = defaultdict(tuple)
        flights, counts = self._by_place(), dict.fromkeys(limits.values(), 0)
        wanted: dict[Place, Score] = {}
        for place in sorted(scores):
            flight = flights[place.partition, place.offset]
            states[flight["dest"]], scored = score(states[flight["dest"]], flight)
            assert scores[place] == scored, place
            limit = [limit for at, limit in sorted(limits.items()) if at <= place.time][-1]
            if Beyond(limit=limit)(scored):
                wanted[place] = scored
                counts[limit] += 1
        assert len(scores) == len(flights)
        assert alerts == wanted
        return counts

    def _arrival(self, n: int) -> Arrival:
        found: Arrival = json.loads(self._flights.values[n])
        return found

    def _by_place(self) -> dict[tuple[int, int], Arrival]:
        """Return the flights with a delay, by partition and offset."""
        ends, found = [0] * PARTITIONS, {}
        for n in range(self._fed):
            partition, flight = int(self._flights.partitions[n]), self._arrival(n)
            if flight["arr_delay"] is not None:
                found[partition, ends[partition]] = flight
            ends[partition] += 1
        return found

    def _results(self, topic: str) -> dict[Place, Score]:
        """Return the results on a topic, by the flight that caused each."""
        found: dict[Place, Score] = {}
        for one in consume_all(self._bootstrap, topic):
            time, _, partition, offset, _ = order_of(one)
            place = Place(time, partition, offset)
            assert place not in found, f"{place} has two results on {topic}"
            found[place] = json.loads(one.value or b"")
        return found
