"""I5: calls in flight are made again after a worker was killed, and dead letters go back once.

The flow is the real command with Spark. Its service refuses some words until it is mended. Its keys
and states are objects of the user's classes, and the timer of one word fails.
"""

from __future__ import annotations

import json
import signal
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.kafka.brokers import Broker
from tests.support.kafka.topics import PATIENCE, Record, consume_all, create_topic, produce, until
from tests.support.process.command_here import command_here
from tests.support.process.flow_process import kill, meander

pytestmark = pytest.mark.timeout(2 * PATIENCE)
FLOW = """
import asyncio
from dataclasses import dataclass
from pathlib import Path

from meander import Checkpointing, DeadLetters, Flow, KafkaSink, KafkaSource, Retry, typed


@dataclass(frozen=True)
class Word:
    text: str


@dataclass
class Count:
    asked: int = 0


def key(word) -> Word:
    return Word(word)


def count(state: Count, word):
    state.asked += 1
    return state, [word, state.asked]


def remind(context, state, word):
    if word == "{late}":
        context.timer(context.time_ms + 1)
    return state


def reminder(context, state):
    raise TimeoutError(context.key.text)


MENDED = Path({mended!r})
flow = Flow("asked", checkpoints=Checkpointing(interval=0.3), dead_letters={bound})


async def ask(word):
    await asyncio.sleep(0.01)
    if word.startswith("bad") and not MENDED.exists():
        raise ConnectionError(word)
    return word.upper()


words = flow.source(KafkaSource("{prefix}words", value="str"))
asked = words.map_async("ask", ask, concurrency=20, on_error=Retry(times=2, wait=0.01))
counts = asked.key_by(key).fold("count", Count, count)
counts.sink(KafkaSink("{prefix}counts", key=typed(Word)))
asked.key_by(key).process("remind", int, remind, reminder).sink(KafkaSink("{prefix}counts"))
"""
HOLD = """
import os
import time

from meander.connectors.kafka import original_reads
from meander.connectors.kafka.original_records import OriginalReader

original_reads.ANSWER_TIMEOUT = 600
read, gate = OriginalReader.read, Path({gate!r})


def hold(reader, places):
    (gate / str(os.getpid())).touch()
    while not (gate / "open").exists():
        time.sleep(0.01)
    return read(reader, places)


OriginalReader.read = hold
"""
"""Holds each read of an original record until the test opens the gate."""
LATE, START = "LATE", 1_700_000_000_000
BAD, UNREADABLE = [f"bad{n}" for n in range(30)], b"\xff"


class AskedFlow:
    """The flow, its topics and its commands."""

    def __init__(self, broker: Broker, prefix: str, folder: Path, bound: str = "None") -> None:
        self._broker, self._prefix, self._folder = broker, prefix, folder
        self._fed = dict[bytes, int]()
        """The number of each word within its feed."""
        self.mended = folder / "mended"
        self.module = folder / "asked.py"
        text = FLOW.format(prefix=prefix, mended=str(self.mended), bound=bound, late=LATE)
        self.module.write_text(text)
        for topic in ("words", "counts"):
            create_topic(broker.bootstrap, prefix + topic, 2)

    def feed(self, words: Sequence[str | bytes]) -> None:
        data = [word.encode() if isinstance(word, str) else word for word in words]
        records = [
            Record(word, b"k", n % 2, START + n, [("n", b"%d" % n)]) for n, word in enumerate(data)
        ]
        self._fed |= {word: n for n, word in enumerate(data)}
        produce(self._broker.bootstrap, self._prefix + "words", records)

    def counts(self) -> dict[str, int]:
        """The greatest count of each word."""
        found = dict[str, int]()
        for record in consume_all(self._broker.bootstrap, self._prefix + "counts"):
            word, count = json.loads(record.value or b"")
            assert json.loads(record.key or b"") == {"text": word}
            found[word] = max(count, found.get(word, 0))
        return found

    def until_counted(self, words: Sequence[str]) -> None:
        wanted = {word.upper() for word in words}
        until(lambda: wanted <= self.counts().keys(), "each word is counted")

    def command(self, *words: str, code: int = 0) -> list[dict[str, object]]:
        """Run `meander dead-letters`, and return its lines."""
        given = ("dead-letters", *words, "--prefix", self._prefix, "--json")
        done = command_here(self._folder, self._broker.bootstrap, *given)
        assert done.code == code, done.err
        return [json.loads(line) for line in done.out.splitlines()]

    def holds(self, original: object) -> bool:
        """Whether a record was fed as it is: with its key, headers and timestamp."""
        assert isinstance(original, dict), original
        n = self._fed[str(original.pop("value")).encode()]
        return original == {"key": "k", "headers": [["n", str(n)]], "time_ms": START + n}

    def run(self, *options: str) -> list[str]:
        return ["run", str(self.module), "--prefix", self._prefix, *options]


def test_calls_and_dead_letters_outlive_a_killed_worker(
    broker: Broker, prefix: str, tmp_path: Path
) -> None:
    asked = AskedFlow(broker, prefix, tmp_path)
    first, second = ([f"word{n}" for n in range(at, at + 400)] for at in (0, 400))
    asked.feed([LATE.lower(), *first, *BAD, UNREADABLE])
    with meander(tmp_path, broker.bootstrap, *asked.run("--workers", "2")) as flow:
        flow.until_event("started")
        flow.until_event("checkpointed")
        asked.feed(second)
        kill(flow.workers[1])
        until(lambda: len(flow.of("started")) > 1, f"it lives again: {flow.said}")
        asked.until_counted([*first, *second])
        listed = Counter(str(one["operator"]) for one in asked.command("asked"))
        assert listed == {"ask": len(BAD), "remind": 1, f"source {prefix}words": 1}
        # A letter that is written again after the recovery carries its record as well.
        carried = asked.command("show", "asked", "--operator", "ask", "--no-original")
        assert all(asked.holds(one["original"]) for one in carried), carried
        (timer,) = asked.command("show", "asked", "--operator", "remind", "--limit", "1")
        assert timer["kind"] == "timer"
        assert json.loads(str(timer["key"])) == {"text": LATE}
        assert f"TimeoutError: {LATE}" in str(timer["reason"])
        unreadable = "--operator", f"source {prefix}words", "--limit", "1"
        (shown,) = asked.command("show", "asked", *unreadable)
        assert shown["value"] == {"base64": "/w=="}
        asked.mended.touch()
        (dry,) = asked.command("replay", "asked", "--operator", "ask", "--dry-run")
        (done,) = asked.command("replay", "asked", "--operator", "ask")
        assert (done["records"], done["dead_letters"]) == (len(BAD), dry["dead_letters"])
        asked.until_counted(BAD)
        (again,) = asked.command("replay", "asked", "--operator", "ask")
        assert (again["dead_letters"], again["produced_before"]) == (0, dry["dead_letters"])
        kill(flow.process.pid, signal.SIGINT)
        assert flow.exit_code() == 130, flow.said
    assert set(asked.counts().values()) == {1}, "no word is asked for twice in a state"
    originals = consume_all(broker.bootstrap, prefix + "words")
    replayed = [one for one in originals if "meander.replay" in dict(one.headers)]
    assert sorted(str(one.value, "utf-8") for one in replayed if one.value) == sorted(BAD)
    assert {one.key for one in replayed} == {b"k"}


def test_dead_letter_that_waits_at_a_killed_worker_is_there_once_with_its_record(
    broker: Broker, prefix: str, tmp_path: Path
) -> None:
    asked, gate = AskedFlow(broker, prefix, tmp_path), tmp_path / "gate"
    gate.mkdir()
    with asked.module.open("a") as module:
        module.write(HOLD.format(gate=str(gate)))
    asked.feed(["word"])
    with meander(tmp_path, broker.bootstrap, *asked.run("--workers", "2")) as flow:
        asked.until_counted(["word"])
        flow.until_event("checkpointed")
        asked.feed(["bad", "later"])
        asked.until_counted(["later"])
        until(lambda: any(gate.iterdir()), "the dead letter waits for its record")
        (waits,) = gate.iterdir()
        assert asked.command("asked") == []
        kill(int(waits.name))
        (gate / "open").touch()
        until(lambda: len(flow.of("started")) > 1, f"it lives again: {flow.said}")
        until(lambda: bool(asked.command("asked")), "the dead letter is there")
        restored, taken = flow.of("recovering")[-1], len(flow.of("checkpointed"))
        assert restored["checkpoint"]
        until(lambda: len(flow.of("checkpointed")) > taken, "a checkpoint has it behind it")
        kill(flow.process.pid, signal.SIGINT)
        assert flow.exit_code() == 130, flow.said
    (letter,) = asked.command("show", "asked", "--no-original")
    assert letter["operator"] == "ask" and asked.holds(letter["original"]), letter


def test_run_with_dead_letters_says_so_and_may_fail(
    broker: Broker, prefix: str, tmp_path: Path
) -> None:
    asked = AskedFlow(broker, prefix, tmp_path)
    asked.feed(["word", UNREADABLE, "bad"])
    options = "--workers", "1", "--until-end"
    for more, code in ((), 0), (("--fail-on-dead-letters",), 1):
        with meander(tmp_path, broker.bootstrap, *asked.run(*options, *more)) as flow:
            assert flow.exit_code() == code, flow.said
            (line,) = flow.of("dead_letters")
            assert line["flow"] == "asked"
            assert int(str(line["count"])) >= 2
        asked.feed([UNREADABLE, "bad"])


def test_flow_with_more_dead_letters_than_its_limit_fails(
    broker: Broker, prefix: str, tmp_path: Path
) -> None:
    asked = AskedFlow(broker, prefix, tmp_path, "DeadLetters(limit=5)")
    asked.feed(BAD)
    with meander(tmp_path, broker.bootstrap, *asked.run("--workers", "2")) as flow:
        assert flow.exit_code() == 1, flow.said
        assert "dead letters within 60 s, and its limit is 5" in flow.said
