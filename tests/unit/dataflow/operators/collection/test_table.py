"""The collection of a table holds, per primary key, the row of the newest record at each time."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from meander import Checkpointing, Flow, KafkaSink, KafkaSource
from meander.dataflow.interfaces import SourceOptions
from meander.dataflow.simulation.in_memory import ListSink, ListSource
from meander.state.times.time import to_millis
from meander.testing import At, Control, TestFlow

Record = tuple[str, tuple[str, int] | None]
RECORDS = 60


def read(record: Record) -> Record:
    return record


def history(rng: random.Random) -> list[tuple[int, Record]]:
    """Rows of few primary keys, which come, change, stay and go; each with its milliseconds."""
    found = list[tuple[int, Record]]()
    for n in range(RECORDS):
        row = None if rng.random() < 0.3 else (rng.choice("ab"), rng.randrange(3))
        found.append((1 + n // 2, (f"row {rng.randrange(5)}", row)))
    return found


def expected(records: list[tuple[int, Record]], millis: int) -> Counter[tuple[str, int]]:
    rows = {key: row for when, (key, row) in records if when <= millis}
    return Counter(row for row in rows.values() if row is not None)


def changes(
    records: list[tuple[int, Record]], seed: int, faults: list[At]
) -> list[tuple[int, str, int, int]]:
    flow, sink = Flow("t", bins=2, checkpoints=Checkpointing(interval=0.01)), ListSink()
    # All records of a row lie in one partition.
    lists: list[list[tuple[int, Any]]] = [
        [one for one in records if int(one[1][0][-1]) % 2 == half] for half in range(2)
    ]
    source: Any = flow.source(ListSource(lists, SourceOptions(idle_after=1e6)))
    source.table(read).collection(key=str).changes().sink(sink)
    with TestFlow(flow, 2, seed, faults=faults) as run:
        run.run()
        assert not run.dead_letters
    found: list[Any] = [(to_millis(one.time), one.value) for one in sink.results]
    return sorted((when, one["key"], one["value"], one["diff"]) for when, one in found)


@pytest.mark.parametrize("seed", range(4))
def test_a_table_holds_the_newest_row_of_each_primary_key(seed: int) -> None:
    rng = random.Random(seed)
    records = history(rng)
    moves: list[At] = [
        At(Control({"type": "migrate", "id": "m", "bins": [0, 1, 2], "worker": seed % 2}),
           records=20),
        At(Control({"type": "rescale", "id": "r", "workers": 3}), records=30),
    ]  # fmt: skip
    found = changes(records, seed, moves)
    for millis in range(1, RECORDS // 2 + 1):
        sums = Counter[tuple[str, int]]()
        for when, key, value, diff in found:
            if when <= millis:
                sums[key, value] += diff
        assert {row: n for row, n in sums.items() if n} == expected(records, millis), millis


def test_a_faulty_row_is_set_aside_and_the_former_one_stays() -> None:
    flow, sink = Flow("t"), ListSink()
    rows = [("one", ("a", 1)), ("one", ("a", "x")), ("one", (7, 1)), ("one", "a"), ("one", None)]
    source: Any = flow.source(ListSource([[*enumerate(rows, 1)]]))
    source.table(read).collection(key=str).changes().sink(sink)
    with TestFlow(flow) as run:
        run.run()
        reasons = [letter.reason for letter in run.dead_letters]
    assert [reason.partition(": ")[2] for reason in reasons] == [
        "its value is 'x', no integer of 64 bits; name its type, as in collection(value=str)",
        "its key is 7, no str; name a type of all, as in collection(key=object)",
        "its row is 'a', no key and value",
    ]  # fmt: skip
    assert sink.values == [
        {"key": "a", "value": 1, "diff": 1}, {"key": "a", "value": 1, "diff": -1},
    ]  # fmt: skip


def test_a_deleted_row_leaves_no_state() -> None:
    def row(record: Any) -> tuple[object, tuple[object, object] | None]:
        person, city = record
        return person, None if city is None else (city, person)

    flow = Flow("cities")
    people = flow.source(KafkaSource("people")).table(row)
    collection = people.collection("people", key=str, value=str)
    collection.changes().sink(KafkaSink("changes"))
    with TestFlow(flow) as run:
        run.feed("people", ["ann", "Rome"], ["bob", "Oslo"], ["ann", None], ["eve", None])
        run.run()
        assert run.states("people") == {"bob": ("Oslo", "bob")}
