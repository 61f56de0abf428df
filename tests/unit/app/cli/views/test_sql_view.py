"""Rows of a query are JSON lines, CSV or a table, with each value as it is."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from rich.console import Console

from meander.app.cli.views.sql import print_rows
from meander.app.common.output import CommandOutput
from meander.schemas.errors import SetupError

OUTPUT = CommandOutput(Console(width=100, highlight=False), as_json=True)
ROWS = pa.table(
    {
        "key": ["a", None],
        "value": [{"n": 1, "at": datetime(2026, 3, 1, tzinfo=UTC)}, None],
        "seen": pa.array([[("x", 1234567)], None], pa.map_(pa.string(), pa.int64())),
        "raw": [b"\xff", b"b"],
        "mean": [0.125, None],
    }
)


def test_rows_are_json_lines(capsys: pytest.CaptureFixture[str]) -> None:
    print_rows(OUTPUT, "json", ROWS)
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert first == {
        "key": "a", "value": {"n": 1, "at": "2026-03-01T00:00:00+00:00"},
        "seen": {"x": 1234567}, "raw": {"base64": "/w=="}, "mean": 0.125,
    }  # fmt: skip
    assert second == {"key": None, "value": None, "seen": None, "raw": "b", "mean": None}


def test_rows_are_csv(capsys: pytest.CaptureFixture[str]) -> None:
    print_rows(OUTPUT, "csv", ROWS.select(["key", "seen", "mean"]))
    assert capsys.readouterr().out.splitlines() == [
        "key,seen,mean", 'a,"{""x"": 1234567}",0.125', ",,",
    ]  # fmt: skip


def test_a_table_shows_whole_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    table = CommandOutput(Console(width=100, highlight=False), as_json=False)
    print_rows(table, "table", ROWS.select(["seen", "mean"]))
    out = capsys.readouterr().out
    assert '{"x": 1234567}' in out
    assert "0.125" in out


def test_json_refuses_two_columns_of_one_name() -> None:
    twice = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["key", "key"])
    with pytest.raises(SetupError, match="several columns are named 'key'"):
        print_rows(OUTPUT, "json", twice)
