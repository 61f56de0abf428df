"""Nexmark: events that name what exists, and queries that answer as a plain reference does."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.nexmark import parts, plots, text, tumbling, wanted
from benchmarks.nexmark.events import AUCTIONS, BIDS, PERSONS, ROUND, TOPICS, Generator
from benchmarks.nexmark.flink_queries import SQL, statements
from benchmarks.nexmark.queries import QUERIES
from benchmarks.outcome import Case, Found, Outcome, Part
from meander.testing import TestFlow

Event = dict[str, Any]
Events = dict[str, list[Event]]
EVENTS, PARTITIONS = 60 * ROUND, 2
SIZE, EVERY = 1.0, 0.2
GENERATOR = Generator(rate=400, seed=7)


@cache
def events(count: int = EVENTS, generator: Generator = GENERATOR) -> Events:
    found: Events = {topic: [] for topic in TOPICS}
    for block in generator.blocks(count):
        for topic in TOPICS:
            found[topic] += map(json.loads, block.values[topic])
    return found


def test_events_have_the_published_proportions() -> None:
    counts = {topic: len(some) for topic, some in events(1000 * ROUND).items()}
    assert counts == {
        "persons": 1000 * PERSONS, "auctions": 1000 * AUCTIONS, "bids": 1000 * BIDS,
    }  # fmt: skip


def test_events_follow_from_the_seed() -> None:
    assert events() == events.__wrapped__()
    assert events() != events(EVENTS, Generator(rate=400, seed=8))


def test_times_never_decrease_and_keep_the_rate() -> None:
    for some in events().values():
        times = [one["dateTime"] for one in some]
        assert times == sorted(times)
    last = max(one["dateTime"] for one in events()["bids"])
    assert last - GENERATOR.start_ms == (EVENTS - 1) * 1000 // GENERATOR.rate


def test_events_name_only_persons_and_auctions_that_exist() -> None:
    came = {one["id"]: one["dateTime"] for one in events()["persons"]}
    opened = {one["id"]: one["dateTime"] for one in events()["auctions"]}
    assert len(came) == len(events()["persons"])
    assert len(opened) == len(events()["auctions"])
    for auction in events()["auctions"]:
        assert came[auction["seller"]] <= auction["dateTime"] < auction["expires"]
    for bid in events()["bids"]:
        assert came[bid["bidder"]] <= bid["dateTime"]
        assert opened[bid["auction"]] <= bid["dateTime"]


@pytest.mark.parametrize(
    ("topic", "name", "share"), [("bids", "auction", 0.5), ("bids", "bidder", 0.75),
                                 ("auctions", "seller", 0.75)],
)  # fmt: skip
def test_hot_ones_have_their_share(topic: str, name: str, share: float) -> None:
    late = events(2000 * ROUND)[topic][-len(events(2000 * ROUND)[topic]) // 2 :]
    hot = np.mean([one[name] % 100 == (name == "bidder") for one in late])
    assert abs(hot - share) < 0.05


@pytest.mark.parametrize(("topic", "size"), [("persons", 200), ("auctions", 500), ("bids", 100)])
def test_fields_have_the_published_sizes(topic: str, size: int) -> None:
    def bytes_of(event: Event) -> int:
        return sum(8 if isinstance(value, int) else len(value) for value in event.values())

    some = events(1000 * ROUND)[topic]
    assert abs(np.mean([*map(bytes_of, some)]) - size) < 0.1 * size


def answer_of(name: str, workers: int = 2) -> Counter[str]:
    """The results of a query of simulated workers, each as text."""
    query = QUERIES[name]
    with TestFlow(query.flow("out", "", SIZE, EVERY), workers=workers, seed=3) as run:
        for topic in query.reads:
            for number, event in enumerate(events()[topic]):
                run.feed(topic, json.dumps(event).encode(), ms=event["dateTime"],
                         partition=number % PARTITIONS)  # fmt: skip
        run.run()
    return Counter(as_text(json.loads(record.value or b"")) for record in run.records("out"))


def as_text(result: object) -> str:
    return json.dumps(result, sort_keys=True)


def windows_of(ms: int, size: float, every: float) -> Iterator[int]:
    """The ends of the windows of a time, in milliseconds."""
    length, step = round(1000 * size), round(1000 * every)
    first = ms - ms % step + step
    yield from range(first, ms - ms % step + length + 1, step)


def best_of(groups: dict[int, list[tuple[int, Event]]]) -> Iterator[Event]:
    for ranked in groups.values():
        best = max(rank for rank, _ in ranked)
        yield from (one for rank, one in ranked if rank == best)


def sales() -> list[Event]:
    bids = defaultdict(list)
    for bid in events()["bids"]:
        bids[bid["auction"]].append(bid)
    found = []
    for auction in events()["auctions"]:
        prices = [
            bid["price"] for bid in bids[auction["id"]]
            if auction["dateTime"] <= bid["dateTime"] <= auction["expires"]
        ]  # fmt: skip
        if prices:
            found.append(auction | {"price": max(prices)})
    return sorted(found, key=lambda sale: (sale["expires"], sale["id"]))


def passed() -> Iterable[Event]:
    return events()["bids"]


def converted() -> Iterable[Event]:
    for bid in events()["bids"]:
        kept = {name: bid[name] for name in ("auction", "bidder", "dateTime", "extra")}
        yield kept | {"price": 0.908 * bid["price"]}


def selected() -> Iterable[Event]:
    for bid in events()["bids"]:
        if bid["auction"] % 123 == 0:
            yield {name: bid[name] for name in ("auction", "price", "dateTime")}


def suggested() -> Iterable[Event]:
    persons = {one["id"]: one for one in events()["persons"]}
    for auction in events()["auctions"]:
        person = persons[auction["seller"]]
        if auction["category"] == 10 and person["state"] in {"OR", "ID", "CA"}:
            place = {name: person[name] for name in ("name", "city", "state")}
            yield place | {"id": auction["id"], "dateTime": auction["dateTime"]}


def average_by_category() -> Iterable[Event]:
    last: dict[int, list[int]] = defaultdict(list)
    for sale in sales():
        prices = last[sale["category"]]
        prices.append(sale["price"])
        yield {"category": sale["category"], "price": sum(prices) / len(prices),
               "dateTime": sale["expires"]}  # fmt: skip


def hottest() -> Iterable[Event]:
    counts = Counter(
        (end, bid["auction"])
        for bid in events()["bids"]
        for end in windows_of(bid["dateTime"], SIZE, EVERY)
    )
    groups: dict[int, list[tuple[int, Event]]] = defaultdict(list)
    for (end, auction), count in counts.items():
        groups[end].append((count, {"auction": auction, "num": count, "dateTime": end}))
    return best_of(groups)


def average_by_seller() -> Iterable[Event]:
    last: dict[int, list[int]] = defaultdict(list)
    for sale in sales():
        last[sale["seller"]] = prices = [*last[sale["seller"]], sale["price"]][-10:]
        yield {"seller": sale["seller"], "price": sum(prices) / len(prices),
               "dateTime": sale["expires"]}  # fmt: skip


def highest() -> Iterable[Event]:
    groups: dict[int, list[tuple[int, Event]]] = defaultdict(list)
    for bid in events()["bids"]:
        (end,) = windows_of(bid["dateTime"], SIZE, SIZE)
        kept = {name: bid[name] for name in ("auction", "bidder", "price")}
        groups[end].append((bid["price"], kept | {"dateTime": end}))
    return best_of(groups)


def new_sellers() -> Iterable[Event]:
    sold = {
        (auction["seller"], end)
        for auction in events()["auctions"]
        for end in windows_of(auction["dateTime"], SIZE, SIZE)
    }
    for person in events()["persons"]:
        (end,) = windows_of(person["dateTime"], SIZE, SIZE)
        if (person["id"], end) in sold:
            yield {"id": person["id"], "name": person["name"], "dateTime": end}


REFERENCES: dict[str, Callable[[], Iterable[Event]]] = {
    "q0": passed, "q1": converted, "q2": selected, "q3": suggested, "q5": hottest,
    "q6": average_by_seller, "q7": highest, "q8": new_sellers,
}  # fmt: skip


@pytest.mark.parametrize("name", REFERENCES)
def test_a_query_gives_what_its_reference_does(name: str) -> None:
    expected = Counter(map(as_text, REFERENCES[name]()))
    assert expected
    assert answer_of(name) == expected


def test_the_last_averages_of_categories_are_those_of_the_reference() -> None:
    def last_of(results: Iterable[Event]) -> dict[int, float]:
        return {one["category"]: one["price"] for one in results}

    given = sorted((json.loads(one) for one in answer_of("q4").elements()),
                   key=lambda one: one["dateTime"])  # fmt: skip
    assert len(given) == len(sales())
    assert last_of(given) == last_of(average_by_category())


def outcome_of(rates: dict[str, tuple[float, float]]) -> Outcome:
    """Drains of some queries by both engines, twice."""
    cases = {}
    for query, (ours, theirs) in rates.items():
        cases[query] = Case()
        for factor in (1.0, 2.0):
            found = {
                "meander_per_s": factor * ours,
                "flink_per_s": theirs,
                "meander_p99_ms": ours,
                "flink_p99_ms": theirs,
            }
            cases[query].add(Found(figures=found))
    python = {engine: Case() for engine in tumbling.ENGINES}
    for case, rate in zip(python.values(), (300.0, 100.0, 200.0), strict=True):
        case.add(Found(figures={"per_s": rate}))
    return Outcome(parts={
        parts.DRAINS: Part(what="drains", cases=cases),
        parts.LATENCIES: Part(what="latencies", cases=cases),
        parts.PYTHON: Part(what="python", cases=python),
    })  # fmt: skip


def test_the_figure_over_flink_is_a_geometric_mean_by_run() -> None:
    rates = dict.fromkeys(SQL, (100.0, 100.0)) | {"q0": (400.0, 100.0), "q1": (25.0, 100.0)}
    told = wanted.figures(outcome_of(rates))
    assert told["nexmark_q0_over_flink"].runs == [4.0, 8.0]
    assert told[wanted.OVER_FLINK].runs == pytest.approx([1.0, 2.0])
    assert told[wanted.OVER_PYTHON].runs == [1.5]


def test_no_figure_over_flink_follows_from_some_queries() -> None:
    assert wanted.OVER_FLINK not in wanted.figures(outcome_of({"q0": (2.0, 1.0)}))


def test_tables_and_pictures_show_all_parts(tmp_path: Path) -> None:
    found = outcome_of(dict.fromkeys(QUERIES, (2.0, 1.0)))
    drawn = [*plots.draw(found, tmp_path)]
    assert {tmp_path / file for file, _ in drawn} == {*tmp_path.iterdir()}
    lines = [*text.lines(found, drawn)]
    for title in parts.TITLES.values():
        assert f"### {title}" in lines


def test_flink_defines_what_its_queries_read_and_give() -> None:
    for query in SQL:
        *tables, insert = statements(query, "b:1", "n-", "out", 10.0, 2.0, bounded=True)
        assert len(tables) == 4
        assert "{" not in insert
        assert "dateTime" not in insert.replace("`dateTime`", "")
