"""The documents show the packages and modules that exist."""

from __future__ import annotations

import re

from tests.support.doc_blocks import ROOT, tree_of

ROOTS = ("meander", "app", "connectors", "dataflow", "state", "schemas")
EXAMPLES = "examples"
"""The folder of flows that users read, which no package imports."""
ARCHITECTURE = (ROOT / "docs/architecture.md").read_text()


def packages() -> set[str]:
    """Return the paths of all packages of the product."""
    found = (path.parent for root in ROOTS for path in (ROOT / root).rglob("__init__.py"))
    return {path.relative_to(ROOT).as_posix() for path in found}


def section(title: str) -> str:
    """Return the text of a section, up to the next one of its level."""
    (text,) = re.findall(rf"^## {title}\n(.*?)^## ", ARCHITECTURE, re.DOTALL | re.MULTILINE)
    return str(text)


def test_the_tree_lists_each_package_once() -> None:
    listed = tree_of(ARCHITECTURE)
    assert len(listed) == len(set(listed))
    assert set(listed) == packages() | {EXAMPLES}


def test_the_readme_shows_the_roots_of_the_tree() -> None:
    assert tree_of((ROOT / "README.md").read_text()) == [*ROOTS, EXAMPLES]


def test_a_tree_without_a_package_or_with_one_too_many_differs() -> None:
    page = "## The tree\n\n```\nstate/   all\n  keys/  bins\n    deep/  x\n  times/ times\n```\n"
    assert tree_of(page) == ["state", "state/keys", "state/keys/deep", "state/times"]


def test_the_six_ways_name_modules_that_exist_in_numbered_steps() -> None:
    ways = re.split(r"^### ", section("Six ways through the house"), flags=re.MULTILINE)[1:]
    assert len(ways) == 6
    for way in ways:
        steps = [line for line in way.splitlines()[1:] if line]
        numbers = [int(step.partition(". ")[0]) for step in steps]
        assert numbers == list(range(1, len(steps) + 1))
        for step in steps:
            assert re.match(r"\d+\. `[a-z_/]+\.py`: [A-Z].*\.$", step), step
            assert len(step.partition(": ")[2].split()) <= 25, step


def test_each_module_that_the_architecture_names_exists() -> None:
    named = set(re.findall(r"`((?:\w+/)+\w+\.py)`", ARCHITECTURE))
    assert len(named) > 80
    assert [name for name in sorted(named) if not (ROOT / name).is_file()] == []
