"""I2 and I4 with real workers, for an operator whose bins move for themselves: these go, those of
the other operator stay, and each goes on with its own states."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from pathlib import Path

from tests.support.kafka.brokers import Broker
from tests.support.kafka.topics import Record, consume_all, create_topic, until
from tests.support.process.flow_process import MEANDER, kill, lines, meander
from tests.support.process.word_counts import each_once

FLOW = """
from meander import KafkaSink, KafkaSource
from meander import Flow


def count(state, word):
    return state + 1, [word, state + 1]


flow = Flow("counts", bins=5)
words = flow.source(KafkaSource("{prefix}lines", value="str")).flat_map(str.split)
keyed = words.key_by(lambda word: word)
alone = keyed.fold("alone", lambda: 0, count, colocate=False)
alone.sink(KafkaSink("{prefix}counts", value="json"))
keyed.fold("other", lambda: 0, count).sink(KafkaSink("{prefix}others", value="json"), "others")
"""
WORDS = 60


def texts(first: int, last: int) -> list[str]:
    return [f"w{n % WORDS}" for n in range(first, last)]


def answered(broker: Broker, topic: str) -> list[Record]:
    return consume_all(broker.bootstrap, topic)


def workers(records: list[Record]) -> set[int]:
    return {int(dict(record.headers)["meander.worker"] or b"") for record in records}


def test_bins_of_one_operator_move_and_those_of_the_other_stay(
    broker: Broker, prefix: str, tmp_path: Path
) -> None:
    module = tmp_path / "flow.py"
    module.write_text(FLOW.format(prefix=prefix))
    lines(broker.bootstrap, prefix, texts(0, 300))
    create_topic(broker.bootstrap, prefix + "others", 4)
    topics = prefix + "counts", prefix + "others"
    run = ["run", str(module), "--prefix", prefix, "--workers", "2"]
    with meander(tmp_path, broker.bootstrap, *run) as flow:
        flow.until_event("started")
        until(lambda: all(len(answered(broker, t)) == 300 for t in topics), "the first lines")
        before = {topic: Counter(map(repr, answered(broker, topic))) for topic in topics}
        moved = subprocess.run(
            [MEANDER, "migrate", "counts", "--bins", "all", "--worker", "1", "--operator", "alone",
             "--prefix", prefix, "--bootstrap", broker.bootstrap],
            check=False, capture_output=True, text=True,
        )  # fmt: skip
        assert moved.returncode == 0, moved.stderr
        lines(broker.bootstrap, prefix, texts(300, 900), create=False, after=300)
        until(lambda: all(len(answered(broker, t)) == 900 for t in topics), "the other lines")
        late = {
            topic: [one for one in answered(broker, topic) if repr(one) not in before[topic]]
            for topic in topics
        }
        kill(flow.process.pid)

    assert [workers(late[topic]) for topic in topics] == [{1}, {0, 1}]
    wanted = Counter(f"w{n % WORDS}" for n in range(900))
    for topic in topics:
        values = (json.loads(record.value or b"") for record in answered(broker, topic))
        assert each_once((word, number) for word, number in values) == wanted
