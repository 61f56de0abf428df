"""I2, I3 and I4 with real Kafka, Spark, RocksDB and links: results and final state equal the
reference, record for record, while random commands move bins between two to four processes.

Some commands lie on the control topic before the flow starts, others come while its data flows.
Times are the flow's to choose: the reference takes those that it has given.
"""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import TypedDict

import pytest
from pyspark import SparkContext

from meander.app.config.options import Options
from meander.app.driver.driver import run
from meander.connectors.kafka.client import admin
from meander.connectors.kafka.topic_metadata import group
from meander.connectors.topics.control import ControlTopic
from meander.connectors.topics.internal_topics import TopicNames, ensure_internal
from meander.dataflow.control.command import MoveBins
from meander.schemas.avro import Format
from meander.schemas.status import (
    Accepted,
    BinMoved,
    CommandRejected,
    Completed,
    Event,
    Queued,
    Started,
    parse_event,
)
from meander.state.encoding import codec
from meander.state.encoding.timers import ROW
from meander.state.keys.bins import BinSpace
from meander.state.keys.ids import Bin, WorkerId
from meander.state.layers.chunk import CHECKSUM_BYTES
from meander.state.times.time import from_millis, to_millis
from tests.support.kafka.topics import (
    Record,
    await_records,
    consume_all,
    create_topic,
    order_of,
    produce,
    until,
)
from tests.support.process.background import BackgroundSteps
from tests.support.property import reference, shapes
from tests.support.property.cases import Case, Entry, random_case

RUNS = 5
RECORDS = 400
"""Of each partition."""
PARTS = 3
"""Portions of the data: before the start, before and after the commands that come late."""
LAST_MS = 1_000_000
"""Later than all data and timers. Then every bin moves to worker 1, and a millisecond later to
worker 0: so the final state of all passes through the state topic, where it can be looked at."""
MIDWAY = ("midway-1", "midway-0")
"""These come once there are results, and move a bin, wherever it is, before there is more data."""
Answer = Queued | Accepted | BinMoved | CommandRejected | Completed


class _Chunk(TypedDict):
    operator: str
    bin: int
    sequence: int
    upper: int
    keys: list[bytes]
    states: list[bytes]
    forgotten: list[int]
    timer_times: list[int]


_CHUNK: Format[_Chunk] = Format("layer_chunk")

FLOW = """
flow = Flow({name!r}, bins={bits}, control_lead={control_lead}, move_memory={move_memory})
options = SourceOptions(max_skew={max_skew})


def read(topic: str, name: str) -> Stream[Any]:
    every = flow.source(KafkaSource(topic, time=header("at"), options=options), name)
    stream = every.filter(bool)
    stream.sink(KafkaSink(topic + "-timed"))
    return stream


other = read({other!r}, "other").key_by(key) if {kind!r} == "connect" else None
define({kind!r}, read({source!r}, "source").key_by(key), other).sink(KafkaSink({results!r}))
"""

IMPORTS = """
from meander import KafkaSink, KafkaSource, header
from meander import Flow, Stream
from meander.dataflow.interfaces import SourceOptions
"""


def case_of(seed: int) -> Case:
    """A random case with more records, and commands for times among theirs."""
    case = random_case(seed, ("chain", "rekey", "timers", "connect", "columns"))
    case = replace(case, bits=max(2, case.bits))
    rng = random.Random(seed)

    def entries() -> tuple[Entry, ...]:
        times = accumulate(rng.choice([0, 1, 2, 9]) for _ in range(RECORDS))
        return tuple((ms, {"k": rng.randrange(50), "v": rng.randint(-9, 9)}) for ms in times)

    def moved(command: MoveBins) -> MoveBins:
        time = from_millis(rng.randrange(RECORDS * 3)) if command.time is not None else None
        return replace(command, time=time, others={})

    return replace(
        case,
        kind=("chain", "rekey", "timers", "connect", "columns")[seed % 5],
        partitions=tuple(entries() for _ in range(max(2, len(case.partitions)))),
        commands=(*_midway(case), *map(moved, case.commands), *_everything(case)),
    )


def _midway(case: Case) -> Iterator[MoveBins]:
    """Some bins, one by one, and back again all at one time; both as soon as possible."""
    some = tuple(Bin(bin) for bin in range(min(8, 1 << (case.bits - 1))))
    yield MoveBins(MIDWAY[0], some, WorkerId(1), None, "fluid")
    yield MoveBins(MIDWAY[1], some, WorkerId(0), None, "all-at-once")


def _everything(case: Case) -> Iterator[MoveBins]:
    bins = tuple(Bin(bin) for bin in range(1 << case.bits))
    for worker in (1, 0):
        at = from_millis(LAST_MS + 1 - worker)
        yield MoveBins(f"last-{worker}", bins, WorkerId(worker), at, "all-at-once")


def _late(case: Case) -> tuple[MoveBins, ...]:
    """What is commanded while the data flows, beside `MIDWAY`: about half of all others."""
    rng = random.Random(case.seed)
    return tuple(command for command in case.commands[2:-2] if rng.random() < 0.5)


class Rig:
    """One case on its topics."""

    def __init__(self, case: Case, bootstrap: str, prefix: str, folder: Path) -> None:
        self.case, self.bootstrap, self.prefix = case, bootstrap, prefix
        self.late = _late(case)
        self.settings = {"bootstrap.servers": bootstrap}
        self.source, self.other = f"{prefix}source", f"{prefix}other"
        self.results = f"{prefix}results"
        self.names: TopicNames = ensure_internal(admin(self.settings), prefix, "oracle")
        self.module = folder / f"flow_{case.seed}.py"
        options = {"max_skew": max(1.0, case.options.max_skew)}
        text = Path(shapes.__file__).read_text()
        imports, body = text.split("from typing import Any\n", 1)
        flow = FLOW.format(
            name="oracle", bits=case.bits, control_lead=case.control_lead, kind=case.kind,
            move_memory=case.move_memory,
            source=self.source, other=self.other, results=self.results, **options,
        )  # fmt: skip
        self.module.write_text(f"{imports}from typing import Any\n{IMPORTS}{body}{flow}")

    def prepare(self) -> None:
        """What lies there when the flow starts: topics, some of the data, the early commands."""
        for topic, partitions in self._data.items():
            create_topic(self.bootstrap, topic, len(partitions))
            create_topic(self.bootstrap, f"{topic}-timed", 1)
        create_topic(self.bootstrap, self.results, 2)
        self._feed(0)
        # Opened once, so that the flow obeys what is commanded from here on.
        control = ControlTopic(self.settings, self.names.control, group(self.prefix, "oracle"))
        control.start(None)
        control.close()
        later = (*self.case.commands[:2], *self.late)
        self._give(*(command for command in self.case.commands if command not in later))

    def go_on(self) -> None:
        """While the flow runs: the rest of the data, the late commands, and the end of all."""
        until(lambda: any(isinstance(event, Started) for event in self.told()), "it started")
        await_records(self.bootstrap, f"{self.source}-timed", bool)
        self._give(*self.case.commands[:2])
        until(lambda: bool(self.ids(BinMoved) & {*MIDWAY}), "a bin has moved")
        self._feed(1)
        self._give(*self.late)
        self._feed(2)
        ids = {command.id for command in self.case.commands}
        until(lambda: self.ids(Queued, Accepted, CommandRejected) == ids, "all are heard")
        for topic, partitions in self._data.items():
            self._produce(topic, [(p, LAST_MS + 10, {}) for p in range(len(partitions))])
        until(lambda: self.ids(Queued, Accepted) == self.ids(Completed), "all are completed")
        for topic, partitions in self._data.items():
            total = sum(map(len, partitions))
            await_records(self.bootstrap, f"{topic}-timed", partial(_as_many_as, total))
        results, _ = self.expected()
        await_records(self.bootstrap, self.results, partial(_as_many_as, len(results)))

    @property
    def _data(self) -> dict[str, tuple[tuple[Entry, ...], ...]]:
        """Of each topic that is read, what its partitions get."""
        found = {self.source: self.case.partitions}
        return found | ({self.other: self.case.partitions[::-1]} if self._connects else {})

    @property
    def _connects(self) -> bool:
        return self.case.kind == "connect"

    def _feed(self, part: int) -> None:
        some = slice(RECORDS * part // PARTS, RECORDS * (part + 1) // PARTS)
        for topic, partitions in self._data.items():
            entries = enumerate(entries[some] for entries in partitions)
            self._produce(topic, [(p, ms, value) for p, some in entries for ms, value in some])

    def _produce(self, topic: str, entries: Sequence[tuple[int, int, dict[str, int]]]) -> None:
        records = (
            Record(json.dumps(value).encode(), partition=p, headers=[("at", str(ms))])
            for p, ms, value in entries
        )
        produce(self.bootstrap, topic, records)

    def _give(self, *commands: MoveBins) -> None:
        produce(self.bootstrap, self.names.control, map(self._command, commands))

    def told(self) -> list[Event]:
        """What the status topic says."""
        records = consume_all(self.bootstrap, self.names.status)
        return [parse_event(record.value or b"") for record in records]

    def ids(self, *kinds: type[Answer]) -> set[str]:
        """The commands that have had one of these answers."""
        return {
            event.id for event in self.told() if isinstance(event, Answer) and type(event) in kinds
        }

    def _command(self, command: MoveBins) -> Record:
        fields: dict[str, object] = {
            "meander": "command",
            "type": "migrate",
            "id": command.id,
            "bins": [int(bin) for bin in command.bins],
            "worker": int(command.worker),
            "strategy": command.strategy,
            "precopy": command.precopy,
            "overlap": command.overlap,
        }
        if command.time is not None:
            fields["time"] = to_millis(command.time)
        return Record(json.dumps(fields).encode())

    def records(self, topic: str) -> list[tuple[reference.Record, int, str]]:
        """Each record with its worker and key."""
        found = []
        for record in consume_all(self.bootstrap, topic):
            worker = int(dict(record.headers)["meander.worker"] or b"")
            entry = reference.Record(order_of(record), json.loads(record.value or b"null"))
            found.append((entry, worker, (record.key or b"").decode()))
        return found

    def timed(self, topic: str) -> list[reference.Record]:
        """The records of a source with the times that the flow has given them, each once."""
        timed = [entry for entry, *_ in self.records(f"{topic}-timed")]
        assert len(timed) == sum(map(len, self._data[topic])), "each record once"
        return timed

    def expected(self) -> tuple[list[reference.Record], reference.States]:
        others = self.timed(self.other) if self._connects else []
        return reference.expected(self.case.kind, self.timed(self.source), others)

    def check(self) -> None:
        """Compare everything."""
        expected, states = self.expected()
        got = self.records(self.results)
        assert sorted(repr((e.order, e.value)) for e, *_ in got) == sorted(
            repr((r.order, json.loads(json.dumps(r.value)))) for r in expected
        )
        of_key = defaultdict[str, list[tuple[int, ...]]](list)
        for entry, _, key in got:
            of_key[key].append(entry.order)
        assert all(orders == sorted(orders) for orders in of_key.values()), "each in its order"
        if self.case.move_memory == 1:
            assert self.final_state() == {
                name: {key: codec.encode(state) for key, state in keyed.items()}
                for name, keyed in states.items()
            }
        self.check_owners(got)
        times = [record.order[0] for record in self.timed(self.source)]
        moved = [event.at for event in self.told() if isinstance(event, BinMoved)]
        assert any(min(times) < at <= max(times) for at in moved), "bins moved in mid-data"

    def final_state(self) -> dict[str, dict[bytes, bytes]]:
        """What all layers say together, of each key the newest: {operator: {key: state}}, encoded.

        All bins have moved last, and with no memory to speak of every move is by the topic, so that
        nothing that has changed is not on it."""
        states: dict[str, dict[bytes, bytes]] = defaultdict(dict)
        timers: dict[tuple[str, int], list[int]] = {}
        written = [r.value for r in consume_all(self.bootstrap, self.names.state) if r.value]
        chunks = [_CHUNK.decode(value[CHECKSUM_BYTES:]) for value in written]
        for chunk in sorted(chunks, key=lambda one: (one["upper"], one["sequence"])):
            entries = zip(chunk["keys"], chunk["states"], strict=True)
            found = states[chunk["operator"]]
            found.update(entries)
            for place in chunk["forgotten"]:
                del found[chunk["keys"][place]]
            timers[chunk["operator"], chunk["bin"]] = chunk["timer_times"]
        rows = [key for found in states.values() for key in found if key.startswith(ROW)]
        assert not any(timers.values()) and not rows, "no timer is left, near or far"
        return states

    def check_owners(self, got: list[tuple[reference.Record, int, str]]) -> None:
        space = BinSpace(self.case.bits)
        moved: dict[int, list[tuple[int, int]]] = defaultdict(list)
        said: dict[str, list[type]] = defaultdict(list)
        for event in self.told():
            if isinstance(event, BinMoved):
                moved[event.bin].append((event.at, event.target))
            elif isinstance(event, Answer):
                said[event.id].append(type(event))
        for entry, worker, key in got:
            bin = space.bin_of(codec.encode(int(key)))
            owner: int = space.first_owner(Bin(bin), self.case.workers)
            for at, target in sorted(moved[bin]):
                owner = target if at <= entry.order[0] else owner
            assert worker == owner, f"bin {bin} at {entry.order[0]} was answered elsewhere (I2)"
        outcomes = ([Accepted, Completed], [Queued, Accepted, Completed], [CommandRejected])
        assert all(said[command.id] in outcomes for command in self.case.commands)


def _as_many_as(count: int, records: list[Record]) -> bool:
    return len(records) >= count


@pytest.mark.parametrize("seed", range(RUNS))
def test_results_equal_the_reference(
    seed: int, bootstrap: str, prefix: str, tmp_path: Path, context: SparkContext
) -> None:
    case = case_of(seed)
    rig = Rig(case, bootstrap, prefix, tmp_path)
    rig.prepare()
    options = Options(rig.settings, workers=case.workers, prefix=prefix)
    beside = BackgroundSteps(rig.go_on)
    with beside:
        run(rig.module, options, lambda: context, signals=beside.signals)
    rig.check()
