"""What a random run is made of: a flow, its topics and its workers, all drawn from a seed.

Four seeds in a row have both orders and both deliveries, and one of the four runs on a Spark
cluster with executors of its own.
"""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass
from typing import Literal

from meander.dataflow.api.checkpointing import POLICIES, Policy
from meander.dataflow.api.nodes import Guarantee
from meander.dataflow.operators.keyed.operator import Order

Operators = Literal["one", "two", "controlled", "rekeyed"]
"""A fold; two folds by the same key, with flow control around the second or not; or two by
different keys, each with results of its own."""

COPIES = "copies"
"""The topic of records without a key, which hold what was fed, where there are any."""
GROUPS = 50
"""Keys of the second fold, where it has others."""
FLOW = """
from meander import KafkaSink, KafkaSource
from meander import Checkpointing, Flow, flow_control

flow = Flow(
    "counts", bins={bins}, delivery="{delivery}",
    checkpoints=Checkpointing(interval={interval}, policy="{policy}"),
)


def read(line):
    key, fed = line.split()
    return {{"key": key, "fed": int(fed)}}


def count(state, record):
    return state + 1, record | {{"count": state + 1}}


def again(state, record):
    return state + 1, record | {{"again": state + 1}}


def total(state, record):
    return state + 1, {{"key": group(record), "count": state + 1}}


def group(record):
    return "g" + str(int(record["key"][1:]) % {groups})


lines = flow.source(KafkaSource("{prefix}lines", value="str")).map(read)
first = lines.key_by(lambda record: record["key"]).fold("count", int, count, order="{order}")
{rest}
{copies}
"""
REST: dict[Operators, str] = {
    "one": 'first.sink(KafkaSink("{prefix}counts"))',
    "two": 'first.fold("again", int, again, order="{order}").sink(KafkaSink("{prefix}counts"))',
    "controlled": """
with flow_control(first, batch=20, in_flight=2) as inner:
    second = inner.fold("again", int, again).leave()
second.sink(KafkaSink("{prefix}counts"))
""",
    "rekeyed": """
first.sink(KafkaSink("{prefix}counts"), "counts")
second = first.key_by(group).fold("total", int, total, order="{order}")
second.sink(KafkaSink("{prefix}totals"), "totals")
""",
}


@dataclass(frozen=True, slots=True)
class Configuration:
    """A flow and what it runs on."""

    seed: int
    delivery: Guarantee
    order: Order
    operators: Operators
    bins: int
    workers: int
    """Those of a driver's start, at most."""
    slots: int
    partitions: int
    """Of the source topic, before any are added."""
    keys: int
    rate: int
    """Records a second."""
    interval: float
    """Seconds between checkpoints."""
    policy: Policy
    cluster: bool
    copied: bool
    """Whether the flow also writes its input without keys."""

    @classmethod
    def drawn(cls, seed: int) -> Configuration:
        """The one of a seed.

        >>> some = [Configuration.drawn(seed) for seed in range(4)]
        >>> len({(one.delivery, one.order) for one in some}), [one.cluster for one in some]
        (4, [False, False, False, True])
        >>> [one.copied for one in some]
        [True, True, False, False]
        """
        rng, way, block = random.Random(f"configuration {seed}"), seed % 4, seed // 4
        return cls(
            seed=seed,
            delivery="exactly_once" if way % 2 == 0 else "at_least_once",
            order="event" if way in {0, 3} else "processing",
            operators=rng.choice(["one", "two", "controlled", "rekeyed"]),
            bins=rng.randint(4, 8),
            workers=rng.randint(2, 3),
            slots=4,
            partitions=rng.choice([2, 4, 6]),
            keys=rng.choice([500, 2_000, 4_000]),
            rate=rng.choice([500, 1_000, 2_000]),
            interval=rng.choice([0.5, 1.0, 2.0]),
            policy=rng.choice(POLICIES),
            cluster=(way + 1) % 4 == block % 4,
            copied=way // 2 == block % 2,
        )

    def module(self, prefix: str) -> str:
        """The flow as a user writes it."""
        named = asdict(self) | {"prefix": prefix, "groups": GROUPS}
        copies = f'lines.sink(KafkaSink("{prefix}{COPIES}"), "{COPIES}")' if self.copied else ""
        return FLOW.format(rest=REST[self.operators].format(**named), copies=copies, **named)

    @property
    def results(self) -> tuple[str, ...]:
        """The topics of results, without their prefix."""
        rekeyed = ("totals",) if self.operators == "rekeyed" else ()
        return "counts", *rekeyed, *((COPIES,) if self.copied else ())
