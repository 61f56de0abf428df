"""Sources and sinks that could not work are refused where they are defined."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from meander import KafkaSink, KafkaSource, SetupError

REFUSED: dict[str, Callable[[], Any]] = {
    "source topic '': Kafka allows no such name; a name has": lambda: KafkaSource(),
    "source topic 'a b': Kafka allows no such name": lambda: KafkaSource("a b"),
    "source topics: they are 5; give a list of topics": lambda: KafkaSource(5),  # type: ignore[call-overload]
    "source topics: they are []; give a list of topics": lambda: KafkaSource([]),
    "source topics: they are ['a', 'a']; name each topic once": lambda: KafkaSource(["a", "a"]),
    "source topics, 5: it is of type int": lambda: KafkaSource(["a", 5]),  # type: ignore[list-item]
    "source pattern '(': it is no regular expression": lambda: KafkaSource(pattern="("),
    "source pattern: it is 5; give a pattern": lambda: KafkaSource(pattern=5),  # type: ignore[call-overload]
    "source of topics 'a.*': it has a topic beside": lambda: KafkaSource("a", pattern="a.*"),
    "source topic 'a', time: it is 'at'; give header('name'), field('name') or a function": (
        lambda: KafkaSource("a", time="at")  # type: ignore[call-overload]
    ),
    "source topic 'a': its options are 5": lambda: KafkaSource("a", options=5),  # type: ignore[call-overload]
    "source topic 'a': its pairs is 'x'": lambda: KafkaSource("a", pairs="x"),  # type: ignore[call-overload]
    "source topic 'a': it has both pairs and metadata": (
        lambda: KafkaSource("a", pairs=True, metadata=True)
    ),
    "sink topic ['a']: it is of type list; name one topic, or give a function": (
        lambda: KafkaSink(["a"])  # type: ignore[arg-type]
    ),
    "sink topic 'a/b': Kafka allows no such name": lambda: KafkaSink("a/b"),
    "sink topic 'a': it has topics=['b'] beside the topic": lambda: KafkaSink("a", topics=["b"]),
    "sink with a topic function, topics: they are (); give a list": lambda: KafkaSink(str),
    "sink with a topic function, topics '[': it is no regular": lambda: KafkaSink(str, topics="["),
    "sink topic 'a', headers: it is False; give a function of the value; origin=False": (
        lambda: KafkaSink("a", headers=False)  # type: ignore[arg-type]
    ),
    "sink topic 'a', partition: it is 1; give a function": lambda: KafkaSink("a", partition=1),  # type: ignore[arg-type]
    "sink topic 'a', time: it is 'at'; give 'logical' or 'wall'": (
        lambda: KafkaSink("a", time="at")  # type: ignore[arg-type]
    ),
    "sink topic 'a': its origin is None": lambda: KafkaSink("a", origin=None),  # type: ignore[arg-type]
}
"""What the error says of each definition."""


@pytest.mark.parametrize(("says", "define"), REFUSED.items(), ids=REFUSED)
def test_an_end_that_could_not_work_is_not_defined(says: str, define: Callable[[], Any]) -> None:
    with pytest.raises(SetupError) as refused:
        define()
    assert str(refused.value).startswith(says)
