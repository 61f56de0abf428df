"""A flow of topics in memory that counts each key's records."""

from __future__ import annotations

from typing import cast

from meander import Flow, KafkaSink, KafkaSource
from meander.testing import TestFlow

BINS = 4
KEYS = [f"k{n}" for n in range(8)]


def counting() -> Flow:
    flow = Flow("f", bins=BINS)
    keyed = flow.source(KafkaSource("in", value="str")).key_by(lambda v: v)
    keyed.fold("n", lambda: 0, lambda n, v: (n + 1, [v, n + 1])).sink(KafkaSink("out"))
    return flow


def fed(run: TestFlow, rounds: int = 5) -> TestFlow:
    """Some of each key on both partitions, a millisecond apart."""
    for n in range(rounds * len(KEYS)):
        run.feed("in", KEYS[n % len(KEYS)], ms=1000 + n, partition=n % 2)
    return run


def expect_counts(run: TestFlow, rounds: int = 5) -> None:
    for key in KEYS:
        values = [value for value in run.values("out") if cast(list[object], value)[0] == key]
        assert values == [[key, n + 1] for n in range(rounds)]
