"""I2, I3 and I4 with real Kafka, Spark, RocksDB and links: results and final state equal the
reference, record for record, while random commands move bins between two to four processes."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import TypedDict

import pytest
from pyspark.sql import SparkSession

from app.coordinator import run
from app.options import Options
from connectors.client import admin
from connectors.control import ControlTopic
from connectors.status import StatusReader
from connectors.topics import Names, ensure_internal, group
from dataflow.migrate.command import Migrate
from schemas.avro import Format
from schemas.status import Accepted, BinMoved, CommandRejected, Completed
from state import codec
from state.bins import BinSpace
from state.chunk import CHECKSUM_BYTES
from state.ids import Bin, WorkerId
from state.time import from_millis, to_millis
from tests.kafka_tools import Record, consume_all, create_topic, produce
from tests.property import reference, shapes
from tests.property.cases import Case, Entry, random_case

RUNS = 10
RECORDS = 400
"""Of each partition."""
LAST_MS = 1_000_000
"""Later than all data and timers. Then every bin moves to worker 1, and a millisecond later to
worker 0: so the final state of all passes through the state topic, where it can be looked at."""


class _Chunk(TypedDict):
    operator: str
    upper: int
    keys: list[bytes]
    states: list[bytes]
    timer_times: list[int]


_CHUNK: Format[_Chunk] = Format("layer_chunk")

FLOW = """
flow = Flow({name!r}, bins={bits}, control_lead={control_lead})
options = SourceOptions(max_skew={max_skew})


def read(topic: str, name: str) -> Stream[Any]:
    stream = flow.source(KafkaSource(topic, time=header("at"), options=options), name)
    stream.sink(KafkaSink(topic + "-timed"))
    return stream


other = read({other!r}, "other").key_by(key) if {kind!r} == "connect" else None
define({kind!r}, read({source!r}, "source").key_by(key), other).sink(KafkaSink({results!r}))
"""

IMPORTS = """
from connectors import KafkaSink, KafkaSource, header
from dataflow import Flow, Stream
from dataflow.protocols import SourceOptions
"""


def case_of(seed: int) -> Case:
    """A random case with more records, and commands for times among theirs."""
    case = random_case(seed, ("chain", "rekey", "timers", "connect", "columns"))
    case = replace(case, bits=max(2, case.bits))
    rng = random.Random(seed)

    def entries() -> tuple[Entry, ...]:
        times = accumulate(rng.choice([0, 1, 2, 9]) for _ in range(RECORDS))
        return tuple((ms, {"k": rng.randrange(50), "v": rng.randint(-9, 9)}) for ms in times)

    def moved(command: Migrate) -> Migrate:
        time = from_millis(rng.randrange(RECORDS * 3)) if command.time is not None else None
        return replace(command, time=time)

    return replace(
        case,
        kind=("chain", "rekey", "timers", "connect", "columns")[seed % 5],
        partitions=tuple(entries() for _ in range(max(2, len(case.partitions)))),
        commands=(*map(moved, case.commands), _midway(case), *_everything(case)),
    )


def _midway(case: Case) -> Migrate:
    """Half of the bins, one by one, while the data flows."""
    half = tuple(Bin(bin) for bin in range(1 << (case.bits - 1)))
    return Migrate("midway", half, WorkerId(1), from_millis(RECORDS), "fluid")


def _everything(case: Case) -> Iterator[Migrate]:
    bins = tuple(Bin(bin) for bin in range(1 << case.bits))
    for worker in (1, 0):
        at = from_millis(LAST_MS + 1 - worker)
        yield Migrate(f"last-{worker}", bins, WorkerId(worker), at, "sudden")


class Rig:
    """One case on its topics."""

    def __init__(self, case: Case, bootstrap: str, prefix: str, folder: Path) -> None:
        self.case, self.bootstrap, self.prefix = case, bootstrap, prefix
        self.settings = {"bootstrap.servers": bootstrap}
        self.source, self.other = f"{prefix}source", f"{prefix}other"
        self.results = f"{prefix}results"
        self.names: Names = ensure_internal(admin(self.settings), prefix, "oracle")
        self.module = folder / f"flow_{case.seed}.py"
        options = {"max_skew": max(1.0, case.options.max_skew)}
        text = Path(shapes.__file__).read_text()
        imports, body = text.split("from typing import Any\n", 1)
        flow = FLOW.format(
            name="oracle", bits=case.bits, control_lead=case.control_lead, kind=case.kind,
            source=self.source, other=self.other, results=self.results, **options,
        )  # fmt: skip
        self.module.write_text(f"{imports}from typing import Any\n{IMPORTS}{body}{flow}")

    def feed(self) -> None:
        self._feed(self.source, self.case.partitions)
        self._feed(self.other, self.case.partitions[::-1])
        create_topic(self.bootstrap, self.results, 2)
        # Opened once, so that the flow obeys what is commanded from here on.
        ControlTopic(self.settings, self.names.control, group(self.prefix, "oracle")).close()
        produce(self.bootstrap, self.names.control, map(self._command, self.case.commands))

    def _feed(self, topic: str, partitions: tuple[tuple[Entry, ...], ...]) -> None:
        create_topic(self.bootstrap, topic, len(partitions))
        create_topic(self.bootstrap, f"{topic}-timed", 1)
        produce(
            self.bootstrap,
            topic,
            (
                Record(json.dumps(value).encode(), partition=p, headers=[("at", str(ms))])
                for p, entries in enumerate(partitions)
                for ms, value in entries
            ),
        )

    def _command(self, command: Migrate) -> Record:
        fields: dict[str, object] = {
            "type": "migrate",
            "id": command.id,
            "bins": [int(bin) for bin in command.bins],
            "worker": int(command.worker),
            "strategy": command.strategy,
        }
        if command.time is not None:
            fields["time"] = to_millis(command.time)
        return Record(json.dumps(fields).encode())

    def records(self, topic: str) -> list[tuple[reference.Record, int, str]]:
        """Each record with its worker and key."""
        found = []
        for record in consume_all(self.bootstrap, topic):
            headers = {
                name: str(value, "ascii")
                for name, value in record.headers
                if isinstance(value, bytes)
            }
            time, origin, partition, offset, index = (
                int(headers[f"meander.{part}"])
                for part in ("time", "origin", "partition", "offset", "index")
            )
            value = json.loads(record.value or b"null")
            entry = reference.Record((time, origin, partition, offset, index), value)
            found.append((entry, int(headers["meander.worker"]), (record.key or b"").decode()))
        return found

    def check(self) -> int:
        """Compare everything; how many bins have moved."""
        timed = [entry for entry, *_ in self.records(f"{self.source}-timed")]
        assert len(timed) == sum(map(len, self.case.partitions)), "each record once"
        others: list[reference.Record] = []
        if self.case.kind == "connect":
            others = [entry for entry, *_ in self.records(f"{self.other}-timed")]
        expected, states = reference.expected(self.case.kind, timed, others)
        got = self.records(self.results)
        assert sorted(repr((e.order, e.value)) for e, *_ in got) == sorted(
            repr((r.order, json.loads(json.dumps(r.value)))) for r in expected
        )
        assert self.final_state() == {
            name: {key: codec.encode(state) for key, state in keyed.items()}
            for name, keyed in states.items()
        }
        return self.check_owners(got)

    def final_state(self) -> dict[str, dict[bytes, bytes]]:
        """What the last move of all bins has carried: {operator: {key: state}}, encoded."""
        states: dict[str, dict[bytes, bytes]] = defaultdict(dict)
        for record in consume_all(self.bootstrap, self.names.state):
            chunk = _CHUNK.decode((record.value or b"")[CHECKSUM_BYTES:])
            if chunk["upper"] == from_millis(LAST_MS + 1):
                assert not chunk["timer_times"], "no timer is left"
                entries = dict(zip(chunk["keys"], chunk["states"], strict=True))
                assert not entries.keys() & states[chunk["operator"]].keys()
                states[chunk["operator"]].update(entries)
        return states

    def check_owners(self, got: list[tuple[reference.Record, int, str]]) -> int:
        space = BinSpace(self.case.bits)
        moved: dict[int, list[tuple[int, int]]] = defaultdict(list)
        said: dict[str, list[type]] = defaultdict(list)
        with closing(StatusReader(self.settings, self.names.status, "oracle")) as reader:
            events = [told.event for told in reader.all()]
        for event in events:
            if isinstance(event, BinMoved):
                moved[event.bin].append((event.at, event.target))
            elif isinstance(event, Accepted | CommandRejected | Completed):
                said[event.id].append(type(event))
        for entry, worker, key in got:
            bin = space.bin_of(codec.encode(int(key)))
            owner: int = space.first_owner(Bin(bin), self.case.workers)
            for at, target in sorted(moved[bin]):
                owner = target if at <= entry.order[0] else owner
            assert worker == owner, f"bin {bin} at {entry.order[0]} was answered elsewhere (I2)"
        outcomes = ([Accepted, Completed], [CommandRejected])
        assert all(said[command.id] in outcomes for command in self.case.commands)
        return sum(at < from_millis(LAST_MS) for moves in moved.values() for at, _ in moves)


@pytest.fixture(scope="module")
def moved() -> Iterator[list[int]]:
    """How many bins have moved in each run; some must have."""
    counts: list[int] = []
    yield counts
    assert sum(counts) > 0


@pytest.mark.parametrize("seed", range(RUNS))
def test_results_equal_the_reference(
    seed: int, bootstrap: str, prefix: str, tmp_path: Path, spark: SparkSession, moved: list[int]
) -> None:
    case = case_of(seed)
    rig = Rig(case, bootstrap, prefix, tmp_path)
    rig.feed()
    options = Options(rig.settings, workers=case.workers, prefix=prefix, until_end=True)
    run(rig.module, options, lambda: spark)
    moved.append(rig.check())
