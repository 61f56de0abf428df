"""Dead letters on the command line: by operator and reason, or as a whole, within 80 columns."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from meander.app.cli.views.dead_letters import (
    MAX_GROUPS,
    OTHERS,
    LetterGroups,
    list_groups,
    show_letters,
)
from meander.app.common.output import CommandOutput
from meander.connectors.topics.dead_letters import DeadLetterRecord, RecordPlace, ReplayMark
from meander.connectors.topics.original_records import OriginalRecord

PLACE = RecordPlace("orders", "id", 1, 7)


def letter(offset: int, reason: str = "KeyError: 'total'", at_ms: int = 0) -> DeadLetterRecord:
    return DeadLetterRecord(
        offset, 1_356_998_400_000 + at_ms, "map", "record", reason, "Traceback ...\nKeyError", 5,
        b"k", b'{"a":1}', [], PLACE, "", 0, whole=False,
    )  # fmt: skip


def terminal() -> tuple[CommandOutput, io.StringIO]:
    text = io.StringIO()
    return CommandOutput(Console(file=text, width=80, highlight=False), as_json=False), text


def grouped(*records: DeadLetterRecord | ReplayMark) -> LetterGroups:
    groups = LetterGroups(lambda _: True)
    for one in records:
        groups.take(one)
    return groups


def test_groups_have_count_times_and_how_many_were_produced_again() -> None:
    groups = grouped(
        letter(0, at_ms=5), letter(1, "ValueError"), letter(2, at_ms=9), ReplayMark((2,))
    )
    start = 1_356_998_400_000
    assert groups.rows == [
        ("map", "KeyError: 'total'", 2, 1, start + 5, start + 9),
        ("map", "ValueError", 1, 0, start, start),
    ]


def test_reasons_beyond_the_most_share_a_line() -> None:
    groups = grouped(*(letter(n, f"KeyError: {n}") for n in range(MAX_GROUPS + 5)))
    assert groups.rows[0][:3] == ("map", OTHERS, 5)
    assert len(groups.rows) == MAX_GROUPS + 1


def test_list_fits_80_columns() -> None:
    output, text = terminal()
    list_groups(output, "orders", grouped(letter(0, "KeyError: " + "x" * 300), letter(1)))
    lines = text.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert "'total'" in text.getvalue()
    assert "2013-01-01" in text.getvalue()


def test_list_of_none_says_so() -> None:
    output, text = terminal()
    list_groups(output, "orders", grouped())
    assert text.getvalue() == "flow 'orders' has no such dead letters\n"


def test_letter_is_shown_with_its_original() -> None:
    output, text = terminal()
    original = OriginalRecord(b"k", b"{}", [("h", b"1")], 4)
    show_letters(output, [letter(3)], {3}, {PLACE: original})
    shown = text.getvalue()
    for part in (
        "dead letter 3 of operator 'map'", "KeyError: 'total'", "partition 1, offset 7",
        "replayed  yes", "original  key k", "h: 1", "Traceback ...",
    ):  # fmt: skip
        assert part in shown


def test_letter_as_json_has_bytes_that_are_no_text_as_base64(
    capsys: pytest.CaptureFixture[str],
) -> None:
    output = CommandOutput(Console(), as_json=True)
    show_letters(output, [letter(3)], set(), {PLACE: OriginalRecord(b"\xff", None, [], 4)})
    line = json.loads(capsys.readouterr().out)
    assert (line["offset"], line["topic"], line["record_offset"]) == (3, "orders", 7)
    assert line["original"] == {
        "key": {"base64": "/w=="}, "value": None, "headers": [], "time_ms": 4,
    }  # fmt: skip
