"""Dead letters on the command line: by operator and reason, or as a whole, within 80 columns."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import pytest
from rich.console import Console

from meander.app.cli.views.dead_letters import (
    MAX_GROUPS,
    OTHERS,
    LetterGroups,
    list_groups,
    report_replay,
    show_letters,
)
from meander.app.common.output import CommandOutput
from meander.connectors.topics.dead_letter_replay import ReplayCounts, Selection
from meander.connectors.topics.dead_letters import (
    DeadLetterRecord,
    ReplayMark,
    SourcePlace,
)
from meander.schemas.dead_letter import OriginalRecord, RecordPlace

PLACE = RecordPlace("orders", "id", 1, 7)


def letter(offset: int, reason: str = "KeyError: 'total'", at_ms: int = 0) -> DeadLetterRecord:
    return DeadLetterRecord(
        offset, 1_356_998_400_000 + at_ms, "map", "record", reason, "Traceback ...\nKeyError", 5,
        b"k", b'{"a":1}', [], PLACE, "", 0, original=None,
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
        ("map", "KeyError: 'total'", 2, 1, start + 5, start + 9, []),
        ("map", "ValueError", 1, 0, start, start, []),
    ]


def of_file(offset: int, name: str) -> DeadLetterRecord:
    place = SourcePlace(0, name, 96)
    return replace(letter(offset), place=None, origin="in/*.jsonl", source_place=place)


def test_letters_of_files_name_file_and_position(capsys: pytest.CaptureFixture[str]) -> None:
    output, text = terminal()
    show_letters(output, [of_file(3, "in/1.jsonl")], set(), {})
    assert "source 'in/*.jsonl', partition 'in/1.jsonl', position 96\n" in text.getvalue()
    show_letters(CommandOutput(Console(), as_json=True), [of_file(3, "in/1.jsonl")], set(), {})
    line = json.loads(capsys.readouterr().out)
    found = line["topic"], line["partition"], line["partition_name"], line["record_offset"]
    assert found == (None, 0, "in/1.jsonl", 96)


def test_list_names_the_files_where_there_are_some() -> None:
    output, text = terminal()
    groups = grouped(*(of_file(n, f"in/{n % 2}.jsonl") for n in range(4)))
    assert groups.rows[0][6] == ["in/0.jsonl", "in/1.jsonl"]
    list_groups(output, "orders", groups)
    assert "in/0.jsonl" in text.getvalue()
    assert max(map(len, text.getvalue().splitlines())) <= 80


def test_replay_says_which_letters_it_leaves_out() -> None:
    output, text = terminal()
    found = Selection(frozenset({0, 1}), 1, replayed=1, without_record=3, beside_kafka=2)
    report_replay(output, found, ReplayCounts(2, 1), dry_run=True)
    assert " ".join(text.getvalue().split()) == (
        "2 dead letters would be produced again, 1 record"
        " 1 was produced again before; --again takes them, too"
        " 1 is a timer, a notification or a change, which no topic holds"
        " 2 are records of files or other sources, which no topic holds: add corrected records to"
        " their source"
    )


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


@pytest.mark.parametrize(("marks", "room"), [([], 34), ([ReplayMark((0,))], 23)])
def test_list_gives_the_reason_the_most_room_of_80_columns(
    marks: list[ReplayMark], room: int
) -> None:
    output, text = terminal()
    one = replace(letter(0, "x" * 90), operator="enrich-by-country")
    list_groups(output, "orders", grouped(one, *marks))
    lines = text.getvalue().splitlines()
    assert max(line.count("x") for line in lines) >= room
    assert ("replayed" in text.getvalue()) == bool(marks)
    assert max(map(len, lines)) <= 80


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


def test_letter_is_shown_with_the_record_that_it_carries_whatever_its_topic_holds() -> None:
    output, text = terminal()
    carried = OriginalRecord(b"own", b"{}", [("h", b"1")], 4)
    stale = {PLACE: OriginalRecord(b"stale", b"", [], 4)}
    show_letters(output, [replace(letter(3), original=carried)], set(), stale)
    assert "original  key own" in text.getvalue() and "h: 1" in text.getvalue()


def test_letter_without_its_record_is_shown_with_the_cause() -> None:
    output, text = terminal()
    show_letters(output, [replace(letter(3), not_carried="its topic is gone")], set(), {})
    assert "original  not carried" in text.getvalue() and "its topic is gone" in text.getvalue()


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
