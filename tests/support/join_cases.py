"""The cases of `docs/reference/joins.md`: tables of inputs with times, and of results.

The first column is the time in milliseconds. An input is headed "stream `name`" or "table `name`",
and a result by an expression that gives a stream with keys, or a table. A cell has records, as
`key: value` with JSON whose words need no quotes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from meander import Flow, KafkaSink, KafkaSource
from meander.state.times.time import to_millis
from meander.testing import TestFlow

PAGE = Path(__file__).parents[2] / "docs/reference/joins.md"
LIFETIMES = {"homes": 1.0}
"""The seconds for which the rows of some tables live, as the page says."""
_WORD = re.compile(r"[A-Za-z_]\w*")
_INPUT = re.compile(r"(stream|table) `(\w+)`")
Record = tuple[int, object, object]
"""A time, a key and a value."""


@dataclass(frozen=True, slots=True)
class JoinCase:
    """One result column of a table, with the inputs of the table."""

    section: str
    expression: str
    inputs: Mapping[str, tuple[str, Sequence[Record]]]
    """The kind and the records of each input, by name."""
    results: Sequence[Record]

    def __str__(self) -> str:
        return f"{self.section}: {self.expression}"


def join_cases(text: str | None = None) -> Iterator[JoinCase]:
    """Yield the cases of the page."""
    section, table = "", list[list[str]]()
    for line in [*(PAGE.read_text() if text is None else text).splitlines(), ""]:
        if line.startswith("|"):
            table.append([cell.strip() for cell in line.strip("|").split("|")])
        elif table:
            yield from _cases(section, table)
            table = []
        if line.startswith("#"):
            section = line.strip("# ")


def _cases(section: str, table: list[list[str]]) -> Iterator[JoinCase]:
    (_, *heads), _, *rows = table
    columns = [
        [(int(row[0]), *record) for row in rows for record in _records(row[number])]
        for number in range(1, len(heads) + 1)
    ]
    inputs, results = dict[str, tuple[str, Sequence[Record]]](), list[tuple[str, Any]]()
    for head, records in zip(heads, columns, strict=True):
        if named := _INPUT.fullmatch(head):
            inputs[named[2]] = named[1], records
        else:
            results.append((head.strip("`"), records))
    for expression, records in results:
        yield JoinCase(section, expression, inputs, records)


def _records(cell: str) -> Iterator[tuple[object, object]]:
    for one in filter(None, cell.split("; ")):
        key, value = one.split(": ", 1)
        yield _value(key), _value(value)


def _value(text: str) -> object:
    """Return the value of JSON whose words need no quotes."""
    quoted = _WORD.sub(lambda word: word[0] if word[0] == "null" else f'"{word[0]}"', text)
    return json.loads(quoted)


def run_case(case: JoinCase, seed: int, workers: int) -> dict[str, list[tuple[int, object]]]:
    """Run the flow of a case. Return times and results by key, in the order of the flow."""
    rng = Random(seed)
    flow = Flow("joins", bins=2)
    names = sorted(case.inputs)
    rng.shuffle(names)
    sources = {name: _source(flow, name, case.inputs[name][0]) for name in names}
    made = eval(case.expression, sources)
    made.sink(KafkaSink("results"))
    with TestFlow(flow, workers, seed, partitions=2) as run:
        for name, (_, records) in case.inputs.items():
            places = {key: rng.randrange(2) for _, key, _ in records}
            for ms, key, value in records:
                run.feed(name, value, key=key, ms=ms, partition=places[key])
        run.run()
        found = run.results("results")
    return _by_key((to_millis(one.time), one.key, one.value) for one in found)


def expected(case: JoinCase) -> dict[str, list[tuple[int, object]]]:
    """Return times and results by key, as the page has them."""
    return _by_key(case.results)


def _source(flow: Flow, name: str, kind: str) -> Any:
    if kind == "table":
        return flow.table(KafkaSource(name), name, ttl=LIFETIMES.get(name))
    records = flow.source(KafkaSource(name, pairs=True), name)
    keyed = records.key_by(lambda record: record[0], name=f"{name} key")
    return keyed.map(lambda record: record[1], name=f"{name} value")


def _by_key(records: Iterable[Record]) -> dict[str, list[tuple[int, object]]]:
    found = dict[str, list[tuple[int, object]]]()
    for ms, key, value in records:
        # A key of a sink is text, or JSON.
        text = key.decode() if isinstance(key, bytes) else key
        found.setdefault(text if isinstance(text, str) else json.dumps(text), []).append(
            (ms, value)
        )
    return found
