"""The runner of a flow in this process: one worker, with real sources and the real clock.

Guarantees that a flow gives the results that it gives on Spark, as both run the same engine; only
the links and the state topic lie in memory. It takes no checkpoint and recovers from nothing, so it
writes to no internal topic. An end by Ctrl-C, or after enough results, may leave results unwritten.
Cost: a start of some tenths of a second, and one core.
"""

from __future__ import annotations

import random
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from copy import copy

from meander.app.common.clock import SystemClock
from meander.app.loading.plan_topics import formats, kafka_sinks, present_topics, sink_topics
from meander.app.worker.event_loop import ThreadedEventLoop
from meander.connectors.kafka import client
from meander.connectors.kafka.sink.sink import KafkaSink
from meander.connectors.kafka.source.source import KafkaSource
from meander.connectors.kafka.topic_metadata import visible_configs
from meander.connectors.testing.dead_letter_places import placed_in
from meander.dataflow.api.checkpointing import ON_COMMAND
from meander.dataflow.api.dead_letters import DeadLetterCount
from meander.dataflow.api.expansion import composites, part_names
from meander.dataflow.api.flow import Flow
from meander.dataflow.api.in_process import InProcessResult
from meander.dataflow.api.nodes import Node, SinkNode, SourceNode
from meander.dataflow.api.plan import Plan
from meander.dataflow.interfaces import WorkerContext
from meander.dataflow.keepalive import NO_KEEPALIVE
from meander.dataflow.metrics.counters import added
from meander.dataflow.runtime.operator_factory import WorkerEnvironment
from meander.dataflow.runtime.worker import Worker
from meander.dataflow.simulation.in_memory import DeadLetter, ListDeadLetters
from meander.dataflow.simulation.simulator import (
    DurableWorld,
    SimClock,
    SimLinks,
    SimTopic,
    simulate,
)
from meander.state.encoding.named_types import use
from meander.state.keys.ids import WorkerId
from meander.state.store.spill import SpillStore
from meander.state.store.store import Database

PREFIX = "in-process."
"""Begins the consumer groups, so that the lag of the flow itself stays as it is."""
LONGEST_WAIT = 0.05
"""The most seconds of a wait without a record."""
_NEVER = 1e9
"""An interval in seconds, longer than a run."""


class WallClock(SystemClock, SimClock):
    """The clock of this machine, for a runner of simulations."""


def run(
    flow: Flow,
    nodes: Sequence[Node],
    settings: Callable[[], dict[str, str]],
    *,
    start: str = "earliest",
    until_end: bool = False,
    fire_timers: bool = False,
    enough: Callable[[], bool] = lambda: False,
    on_dead_letter: Callable[[DeadLetter], None] = lambda _: None,
) -> InProcessResult:
    """Run some nodes of a flow until Ctrl-C, until `enough`, or until the sources' present end.

    `settings` returns those of Kafka, and is called for a flow with topics alone. Raises
    MeanderError where the flow cannot start, or fails.
    """
    began, wakeup = time.monotonic(), _Event()
    kafka = settings() if any(_is_kafka(node) for node in nodes) else {}
    plan = _plan(flow, nodes, kafka)
    dead = ListDeadLetters(placed=placed_in(plan))
    use(flow.named_types)
    for form, place in formats(plan):
        form.check(place)
    context = WorkerContext(
        flow.name, PREFIX, WorkerId(0), 1, kafka, until_end, start, wakeup, flow.max_waiting,
        NO_KEEPALIVE, _outside(plan, kafka),
    )  # fmt: skip
    counters = Counter[str]()
    with ExitStack() as opened:
        folder = opened.enter_context(tempfile.TemporaryDirectory(prefix="meander-"))
        database = Database(folder, flow.state_memory)
        opened.callback(database.close)
        world = DurableWorld.empty(random.Random(0))

        def build(
            me: WorkerId, links: SimLinks, clock: SimClock, topic: SimTopic, joins: bool
        ) -> Worker:
            environment = WorkerEnvironment(
                me, 1, clock, topic, dead, database.store,
                lambda name: SpillStore(database, name),
                lambda node, rests, readers: node.spec.open(context, dead, rests, readers),
                lambda node: node.spec.open(context),
                world.execution, world.start, world.in_flight, lambda: ThreadedEventLoop(wakeup),
                joins=joins, fires_timers=lambda: fire_timers,
            )  # fmt: skip
            return Worker(plan, environment, links)

        members = simulate(plan, 1, random.Random(0), build, world, clock=WallClock())
        (worker,) = members.workers
        opened.callback(worker.close)
        count, told = DeadLetterCount(flow.name, flow.dead_letters), 0
        try:
            while not (members.done or enough()):
                if not members.turn():
                    wakeup.rest(min(worker.wait_seconds(), LONGEST_WAIT))
                for letter in dead.letters[told:]:
                    on_dead_letter(letter)
                told = len(dead.letters)
                count.note(told, time.monotonic())
        except KeyboardInterrupt:
            # In a notebook this is the only way to end a flow without an end.
            pass
        counters = added(members.counters, worker.counters)
    return InProcessResult(dict(counters), tuple(dead.letters), time.monotonic() - began)


class _Event:
    """A wakeup of the loop; implements `Wakeup`."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def set(self) -> None:
        self._event.set()

    def rest(self, seconds: float) -> None:
        """Wait until the next call of `set`, or until `seconds` have passed."""
        self._event.wait(seconds)
        self._event.clear()


def _plan(flow: Flow, nodes: Sequence[Node], kafka: dict[str, str]) -> Plan:
    """Return the plan of a copy of the flow without checkpoints, snapshots and policies."""
    local = copy(flow)
    local.nodes = [*nodes]
    # Nothing restarts, so each result leaves once without transactions.
    local.delivery, local.checkpoints, local.policies = "at_least_once", ON_COMMAND, ()
    local.snapshot_interval = _NEVER
    if not composites(local.nodes):
        return Plan(local, ())
    return Plan(local, part_names(local.nodes, sorted(present_topics(client.admin(kafka)))))


def _outside(plan: Plan, kafka: client.Settings) -> dict[str, dict[str, str]]:
    """Return the settings of the topics that the sinks may write to."""
    if not any(kafka_sinks(plan)):
        return {}
    admin = client.admin(kafka)
    return visible_configs(admin, sink_topics(admin, plan))


def _is_kafka(node: Node) -> bool:
    spec = node.spec if isinstance(node, SourceNode | SinkNode) else None
    return isinstance(spec, KafkaSource | KafkaSink)
