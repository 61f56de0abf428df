"""No retired word comes back, and the glossary keeps its own rules."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.retired_words import (
    GLOSSARY,
    ROOT,
    RetiredWord,
    Search,
    find,
    main,
    product,
    retired_words,
    without_retired,
)

PAGE = """\
# Glossary

| Term | Meaning | Elsewhere | Replaces |
|---|---|---|---|
| boat (`BoatPool`) | It floats. | | `Raft`, `OldBoat` → `Boat`, `dinghy`, `row home`, `--oars` |
| port | A port holds boats. | | `launch` |
"""
WORDS = retired_words(PAGE)


def python(source: str) -> list[tuple[int, str]]:
    found = Search(WORDS).python("state/sea.py", source)
    return [(finding.line, finding.retired.word) for finding in found]


def markdown(source: str) -> list[tuple[int, str]]:
    found = Search(WORDS).markdown("README.md", source)
    return [(finding.line, finding.retired.word) for finding in found]


def test_the_glossary_says_what_is_retired_and_what_replaces_it() -> None:
    words = retired_words(PAGE)
    assert words == [
        RetiredWord("Raft", "boat (BoatPool)"),
        RetiredWord("OldBoat", "Boat"),
        RetiredWord("dinghy", "boat (BoatPool)"),
        RetiredWord("row home", "boat (BoatPool)"),
        RetiredWord("--oars", "boat (BoatPool)"),
        RetiredWord("launch", "port"),
    ]


@pytest.mark.parametrize(
    "source",
    [
        "class Raft:\n    pass\n",
        "class _Raft:\n    pass\n",
        "def float_on(boat: Raft) -> None: ...\n",
        "boats.Raft()\n",
        "from boats import Raft\n",
        'boat: "Raft"\n',
        "print(f'a {Raft()} floats')\n",
    ],
)
def test_a_retired_name_is_found_in_an_identifier(source: str) -> None:
    assert python("\n" + source) == [(2, "Raft")]


@pytest.mark.parametrize(
    "source",
    [
        "def dinghy(): ...\n",
        "def float_on(small_dinghy): ...\n",
        "float_on(dinghy=1)\n",
        "boat.dinghy = 1\n",
        "class RedDinghy: ...\n",
        "def row_home(): ...\n",
    ],
)
def test_a_retired_word_is_found_as_a_part_of_an_identifier(source: str) -> None:
    assert [line for line, _ in python("\n" + source)] == [2]


@pytest.mark.parametrize(
    ("plural", "word"),
    [("dinghys", "dinghy"), ("Launches", "launch"), ("RedDinghys", "dinghy")],
)
def test_the_plural_of_a_retired_word_is_found(plural: str, word: str) -> None:
    assert markdown(f"Two {plural} float.\n") == [(1, word)]


def test_retired_words_are_found_in_docstrings_comments_and_strings() -> None:
    source = '''"""A boat.

A Dinghy floats; so does `Raft.float`, and they row
home. OldBoat sinks.

>>> Raft()
"""
LOST = "no dinghy"  # a dinghy is lost
'''
    assert python(source) == [
        (3, "Raft"),
        (3, "dinghy"),
        (3, "row home"),
        (4, "OldBoat"),
        (6, "Raft"),
        (8, "dinghy"),
    ]


def test_retired_words_are_found_in_markdown_and_in_its_code() -> None:
    source = (
        "# Boats\n\nA dinghy, a `Raft`.\n\n```\nRaft()\nboats --oars 2\n```\nThe last OldBoat.\n"
    )
    assert markdown(source) == [
        (3, "Raft"),
        (3, "dinghy"),
        (6, "Raft"),
        (7, "--oars"),
        (9, "OldBoat"),
    ]


def test_a_file_or_folder_with_a_retired_name_is_found() -> None:
    (finding,) = Search(WORDS).python("dinghy/sea.py", "")
    assert finding.file == "dinghy/sea.py" and finding.retired.word == "dinghy"


def test_a_clean_text_passes() -> None:
    prose = "Raft: an ordinary word. Rafts and dinghies row homewards, under --oars-up."
    assert python(f'"""{prose}"""\n\n\nclass Rafts:\n    raft = "a Raft floats"\n') == []
    assert markdown(prose + " `rafts` and `OldBoats`\n") == []


def test_a_finding_names_file_line_word_and_replacement() -> None:
    (finding,) = Search(WORDS).python("state/sea.py", "\nOldBoat()\n")
    assert str(finding) == "state/sea.py:2: retired word 'OldBoat': write 'Boat'"


def test_the_check_reads_the_glossary_and_the_whole_product(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "state" / "deep").mkdir(parents=True)
    (tmp_path / GLOSSARY).write_text(PAGE)
    (tmp_path / "state" / "deep" / "sea.py").write_text("dinghy = 1\n")
    (tmp_path / "README.md").write_text("A dinghy.\n")
    found = find(retired_words((tmp_path / GLOSSARY).read_text()), tmp_path)
    assert [(finding.file, finding.line) for finding in found] == [
        ("state/deep/sea.py", 1),
        ("README.md", 1),
    ]


def test_the_definitions_of_the_glossary_are_searched_too() -> None:
    page = PAGE.replace("A port holds boats.", "A port holds a dinghy.")
    assert markdown(without_retired(page)) == [(6, "dinghy")]


def test_the_product_holds_no_retired_word(capsys: pytest.CaptureFixture[str]) -> None:
    assert main() == 0, capsys.readouterr().out


# -- the glossary itself

_ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in (ROOT / GLOSSARY).read_text().splitlines()
    if line.startswith("| ") and not line.startswith("| Term ")
]


def test_terms_are_in_alphabetical_order_and_defined_once() -> None:
    terms = [row[0].partition(" (")[0].lower() for row in _ROWS]
    assert terms == sorted(set(terms)) and len(terms) > 100
    assert all(len(row) == 4 for row in _ROWS)


def test_a_definition_has_one_or_two_sentences_of_at_most_25_words() -> None:
    for term, meaning, *_ in _ROWS:
        sentences = re.split(r"(?<=\.) ", meaning)
        assert len(sentences) <= 2, term
        assert all(len(sentence.split()) <= 25 for sentence in sentences), term


def test_names_that_the_glossary_uses_exist() -> None:
    names = {name for file, text in product() if file.endswith(".py") for name in _words(text)}
    for term, *_, replaces in _ROWS:
        for name in re.findall(r"`([^`]+)`", term) + re.findall(r"→ `([^`]+)`", replaces):
            assert name in names or (ROOT / name).is_file(), f"{term}: no {name}"


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text)
