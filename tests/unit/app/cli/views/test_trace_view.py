"""The rows of a collection are a table on a terminal, and JSON lines elsewhere."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest
from rich.console import Console

from meander.app.cli.views.trace import parse_time, show_rows
from meander.app.common.output import CommandOutput
from meander.dataflow.operators.collection.checkpointed_rows import CollectionRows
from meander.schemas.errors import SetupError
from meander.state.checkpoint.arrangements import KeptArrangement
from meander.state.times.time import END_TIME, from_millis

KEPT = KeptArrangement("nearest", "input", "nearest", 1)


def rows(time: int) -> CollectionRows:
    """One row at a time."""
    return CollectionRows(time, np.array([7]), np.array([-2]), np.array([3]))


@pytest.mark.parametrize(("time", "as_of"), [(from_millis(6) - 1, 5), (END_TIME, None)])
def test_a_row_is_a_json_line_with_its_time(
    time: int, as_of: int | None, capsys: pytest.CaptureFixture[str]
) -> None:
    show_rows(CommandOutput(Console(), True), "distances", 4, KEPT, rows(time))
    assert json.loads(capsys.readouterr().out) == {
        "key": 7, "value": -2, "count": 3, "arrangement": "input", "as_of": as_of, "checkpoint": 4,
    }  # fmt: skip


def test_a_table_names_the_arrangement_and_its_time() -> None:
    written = io.StringIO()
    output = CommandOutput(Console(file=written, width=120), False)
    show_rows(output, "distances", 4, KEPT, rows(from_millis(1001) - 1))
    title, *table = [line.split() for line in written.getvalue().splitlines() if line.strip()]
    assert " ".join(title) == (
        "input of nearest in distances at 1970-01-01 00:00:01.000, checkpoint 4"
    )
    assert (table[0], table[-1]) == (["key", "value", "count"], ["7", "-2", "3"])


@pytest.mark.parametrize("text", ["noon", "", "2026-13-01", "9" * 30])
def test_another_text_than_a_time_is_refused(text: str) -> None:
    with pytest.raises(SetupError, match=r"^--as-of .*: it is no time \(.*\); give milliseconds"):
        parse_time(text)
