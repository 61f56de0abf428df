"""A view shows what the users of an operator know, of states as a run has left them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from meander import Flow, KafkaSource, columns, tumbling
from meander.app.sql.decoding import StateDecoder, flow_of, keyed_node
from meander.app.sql.kinds import inner_operators, kind_of, stored_by
from meander.connectors.testing.simulated_flow import TestFlow
from meander.dataflow.joins.kept_records import ROWS
from meander.state.checkpoint.arrangements import OperatorFrontier
from meander.state.checkpoint.checkpoint import Checkpoint
from meander.state.keys.bins import BinSpace
from meander.state.keys.ids import ExecutionId
from meander.state.times.time import END_TIME, from_millis

FLOW = """
from meander import Flow, KafkaSource, columns, count, field, hopping, session, sliding, tumbling

flow = Flow("views", bins=2)
views = flow.source(KafkaSource("views", time=field("at")), "views")
pages = views.key_by(lambda view: view["page"])
pages.fold("fold", int, lambda seen, _: (seen + 1, None), ttl=10)
pages.process("process", list, lambda context, seen, view: [*seen, view["at"]])
mean = columns.mean("n")
pages.window("hopping", hopping(2, every=1, late=5)).fold(mean)
pages.window("tumbling", tumbling(1, late=5)).fold(list, lambda seen, view: [*seen, view["n"]])
pages.window("session", session(0.5, late=5)).fold(mean)
pages.window("each", tumbling(1, late=5)).fold(mean, emit="each")
pages.window("count", count(3)).fold(mean)
pages.window("sliding", sliding(1, late=5)).reduce(lambda one, _: one)
clicks = flow.source(KafkaSource("clicks", time=field("at")), "clicks")
clicks = clicks.key_by(lambda click: click["page"])
pages.join(clicks, within=(-0.5, 5), name="interval join")

places = flow.table(KafkaSource("places", value="str"), "places")
lived = flow.table(KafkaSource("places", value="str"), "lived", ttl=60)
cities = flow.table(KafkaSource("cities"), "cities")
pages.join(places, name="table join")
pages.join(places, on=lambda view: view["page"], copies="everywhere", name="copies")
places.join(cities, name="inner")
places.join(cities, how="left", name="left")
places.join(cities, on=lambda city: city, name="foreign key")
places.join(cities, on=lambda city: city, how="left", name="left foreign key")
places.changes("changes")
lived.changes("lived changes")
"""
MANY = 3 * ROWS
"""Records of a key that lie in several blocks."""
EMPTY = Checkpoint(1, ExecutionId(1), BinSpace(1), 0, ())
Fields = dict[str, Any]


class Shown:
    """The views of a flow, over the states of a run that has not ended."""

    def __init__(self, module: Path, run: TestFlow) -> None:
        self._module, self._run = module, run

    @property
    def flow(self) -> Flow:
        return flow_of(self._module)

    def rows(self, operator: str, frontier: int | None = None) -> list[Fields]:
        """Return the rows of an operator in the order of their keys, as of a frontier."""
        node = keyed_node(self.flow, operator)
        assert node is not None
        stored = stored_by(node)
        frontiers = () if frontier is None else (OperatorFrontier(stored.name, frontier),)
        checkpoint = replace(EMPTY, cut=replace(EMPTY.cut, frontiers=frontiers))
        show = StateDecoder(stored.name, stored.codec.name, self._module)()
        names = [*kind_of(stored).columns, "error"]
        entries = [*self._entries(stored.name)]
        rows = [dict(zip(names, row, strict=True)) for row in show(checkpoint, entries)]
        assert all(row.pop("error") is None for row in rows)
        return sorted(rows, key=lambda row: str(row["key"]))

    def _entries(self, operator: str) -> Iterator[tuple[bytes, bytes]]:
        for worker in self._run.workers:
            store = worker.parts.operators.nodes[operator].store  # type: ignore[attr-defined]
            for bin in store.bins():
                yield from store.scan(bin)


@pytest.fixture
def shown(tmp_path: Path) -> Iterator[Shown]:
    module = tmp_path / "views.py"
    module.write_text(FLOW)
    with TestFlow(flow_of(module)) as run:
        run.feed("places", "Bern", key="home", ms=0)
        run.feed("places", "Rome", key="help", ms=0)
        run.feed("places", "Oslo", key="gone", ms=0)
        run.feed("places", None, key="gone", ms=1)
        run.feed("cities", {"in": "Europe"}, key="Bern", ms=0)
        run.feed("cities", {"in": "Europe"}, key="home", ms=0)
        views = [(100, 1), (200, 4), (1300, 7)]
        run.feed("views", *({"page": "home", "at": at, "n": n} for at, n in views))
        clicks = [("home", 50), ("home", 1400), *(("many", 1400 + n) for n in range(MANY))]
        run.feed("clicks", *({"page": page, "at": at} for page, at in clicks))
        run.run_until_idle()
        yield Shown(module, run)


def test_a_fold_and_a_process_function_show_the_state_of_each_key(shown: Shown) -> None:
    assert shown.rows("fold") == [{"key": "home", "value": 3}]
    assert shown.rows("process") == [{"key": "home", "value": [100, 200, 1300]}]


def test_a_state_shows_until_the_frontier_reaches_its_due_time(shown: Shown) -> None:
    due = from_millis(11_300)
    assert shown.rows("fold", due - 1) == [{"key": "home", "value": 3}]
    assert shown.rows("fold", due) == []
    assert shown.rows("fold", END_TIME) == [{"key": "home", "value": 3}], "no time tells its end"
    assert shown.rows("process", from_millis(1 << 40)) == [
        {"key": "home", "value": [100, 200, 1300]}
    ]


@pytest.mark.parametrize("operator", ["tumbling", "each"])
def test_a_window_shows_its_result_so_far(shown: Shown, operator: str) -> None:
    values = {"tumbling": ([1, 4], [7]), "each": (2.5, 7.0)}[operator]
    assert shown.rows(operator) == [
        {"key": "home", "start": start, "end": start + 1000, "value": value}
        for start, value in zip((0, 1000), values, strict=True)
    ]


def test_windows_in_columns_show_their_results_so_far_and_hopping_ones_those_of_panes(
    shown: Shown,
) -> None:
    rows = sorted(shown.rows("hopping"), key=lambda row: row["start"])
    assert [(row["start"], row["end"], row["value"]) for row in rows] == [
        (0, 1000, 2.5), (1000, 2000, 7.0)
    ]  # fmt: skip
    rows = sorted(shown.rows("session"), key=lambda row: row["start"])
    assert [(row["start"], row["end"], row["value"]) for row in rows] == [
        (100, 700, 2.5), (1300, 1800, 7.0)
    ]  # fmt: skip
    assert shown.rows("count") == []


def test_a_sliding_window_shows_its_records_so_far(shown: Shown) -> None:
    rows = [(row["start"], row["end"], [one["n"] for one in row["value"]])
            for row in shown.rows("sliding")]  # fmt: skip
    assert rows == [(-899, 101, [1]), (-799, 201, [1, 4]), (301, 1301, [7])]


def test_an_interval_join_shows_the_records_that_wait(shown: Shown) -> None:
    def waits(page: str, side: str, at: int, **rest: int) -> Fields:
        time = datetime.fromtimestamp(at / 1000, UTC)
        value = {"page": page, "at": at, **rest}
        return {"key": page, "side": side, "time": time, "value": value}

    rows = shown.rows("interval join")
    left = [waits("home", "left", at, n=n) for at, n in ((100, 1), (200, 4), (1300, 7))]
    assert [row for row in rows if row["key"] == "home"] == [*left, waits("home", "right", 1400)], (
        "nothing that pairs with a click at 50 ms can come any more"
    )
    many = sorted((row for row in rows if row["key"] == "many"), key=lambda row: row["time"])
    assert many == [waits("many", "right", 1400 + n) for n in range(MANY)]


def test_a_join_of_tables_shows_the_rows_of_its_table(shown: Shown) -> None:
    home = {"key": "home", "left": "Bern", "right": {"in": "Europe"}}
    help_ = {"key": "help", "left": "Rome", "right": None}
    assert shown.rows("inner") == [home]
    assert shown.rows("left") == [help_, home]
    assert shown.rows("foreign key") == [home | {"foreign_key": "Bern"}]
    assert shown.rows("left foreign key") == [
        help_ | {"foreign_key": "Rome"}, home | {"foreign_key": "Bern"}
    ]  # fmt: skip


def test_only_the_last_stage_of_a_join_by_foreign_key_has_a_view(shown: Shown) -> None:
    joins = "foreign key", "left foreign key"
    stages = {f"{join} {stage}" for join in joins for stage in ("left", "pairs")}
    assert inner_operators(shown.flow) == stages


def test_a_table_shows_a_row_per_key_where_an_operator_keeps_it(shown: Shown) -> None:
    rows = [{"key": "help", "value": "Rome"}, {"key": "home", "value": "Bern"}]
    assert shown.rows("table join") == shown.rows("changes") == rows
    copies = shown.rows("copies")
    assert copies == sorted(rows * 4, key=lambda row: row["key"]), "each of 4 bins has a copy"
    assert shown.rows("lived expiry") == [
        {"key": "help", "end": 60_000}, {"key": "home", "end": 60_000}
    ]  # fmt: skip


def test_a_top_shows_the_results_so_far() -> None:
    node = keyed_node(flow_with_top(), "ranked top")
    assert node is not None
    kind, result = kind_of(node), {"key": "home", "start": 0, "end": 1000, "value": 7}
    assert [*kind.columns] == [*result]
    assert [*kind.rows(b"", (0, 1000), [(7, result)])] == [tuple(result.values())]


def flow_with_top() -> Flow:
    flow = Flow("top")
    pages = flow.source(KafkaSource("views")).key_by(lambda view: view["page"])
    pages.window("ranked", tumbling(1)).fold(columns.count()).top(2)
    return flow
