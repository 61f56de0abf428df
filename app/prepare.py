"""What is seen to before a flow is launched.

Guarantees that all that can be checked at the driver has been: the module loads and defines a flow,
the topics it reads and writes exist, the internal topics are as they must be, and no other driver
runs the flow: its last heartbeat is older than `lease`, where the broker's and this machine's clock
are taken to agree. Cost: some round trips to Kafka.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

from app.clock import SystemClock
from app.loader import Source, collect, load_flow
from app.options import Options
from connectors import client
from connectors.sink import KafkaSink
from connectors.source import KafkaSource
from connectors.status import last_heartbeat
from connectors.topics import Names, ensure_internal, partitions_of
from dataflow.nodes import SinkNode
from dataflow.plan import Plan
from schemas.errors import SetupError
from state.ids import Incarnation


@dataclass(frozen=True, slots=True)
class Prepared:
    """A flow for which everything stands that workers will need."""

    plan: Plan
    source: Source
    options: Options
    names: Names
    driver: str = field(default_factory=lambda: uuid4().hex[:12])
    incarnation: Incarnation = field(
        # Grows from life to life, as no two drivers of a flow start within one lease.
        default_factory=lambda: Incarnation(SystemClock().now_ms())
    )

    @property
    def flow(self) -> str:
        """The flow's name."""
        return self.plan.flow.name


def prepare(module: Path, options: Options) -> Prepared:
    """Load a flow and see to its topics. Raises SetupError, also while another driver runs it."""
    source = collect(module)
    plan = Plan(load_flow(module))
    admin = client.admin(options.kafka)
    for topic in _topics(plan):
        partitions_of(admin, topic)
    names = ensure_internal(admin, options.prefix, plan.flow.name)
    _refuse_second(options, names, plan.flow.name)
    return Prepared(plan, source, options, names)


def _topics(plan: Plan) -> list[str]:
    specs = [node.spec for node in plan.sources]
    sinks = [node.spec for node in plan.nodes if isinstance(node, SinkNode)]
    return [spec.topic for spec in [*specs, *sinks] if isinstance(spec, KafkaSource | KafkaSink)]


def _refuse_second(options: Options, names: Names, flow: str) -> None:
    last = last_heartbeat(options.kafka, names.status)
    if last is None:
        return
    age = SystemClock().now_ms() / 1000 - last.millis / 1000
    if age < options.lease:
        raise SetupError(
            f"flow {flow!r}",
            f"another driver runs it (its last heartbeat came {max(age, 0):.1f} s ago)",
            f"stop that one; if it is dead, wait {options.lease:g} s",
        )
