"""The documents show the packages and modules that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOTS = ("meander", "app", "connectors", "dataflow", "state", "schemas")
ARCHITECTURE = (ROOT / "docs/architecture.md").read_text()


def tree_of(page: str) -> list[str]:
    """Return the packages that the tree of a page lists, as paths, in order."""
    (block,) = re.findall(r"^## The tree\n.*?^```\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    found, parents = [], list[str]()
    for line in block.splitlines():
        matched = re.fullmatch(r"((?:  )*)(\w+)/ +\S.*", line)
        assert matched is not None, line
        parents[len(matched[1]) // 2 :] = [matched[2]]
        found.append("/".join(parents))
    return found


def packages() -> set[str]:
    """Return the paths of all packages of the product."""
    found = (path.parent for root in ROOTS for path in (ROOT / root).rglob("__init__.py"))
    return {path.relative_to(ROOT).as_posix() for path in found}


def section(title: str) -> str:
    """Return the text of a section, up to the next one of its level."""
    (text,) = re.findall(rf"^## {title}\n(.*?)^## ", ARCHITECTURE, re.DOTALL | re.MULTILINE)
    return str(text)


@pytest.mark.parametrize("page", ["docs/architecture.md", "README.md"])
def test_the_tree_lists_each_package_once(page: str) -> None:
    listed = tree_of((ROOT / page).read_text())
    assert len(listed) == len(set(listed))
    assert set(listed) == packages()


def test_a_tree_without_a_package_or_with_one_too_many_differs() -> None:
    page = "## The tree\n\n```\nstate/   all\n  keys/  bins\n    deep/  x\n  times/ times\n```\n"
    assert tree_of(page) == ["state", "state/keys", "state/keys/deep", "state/times"]


def test_both_pages_show_one_tree() -> None:
    assert tree_of((ROOT / "README.md").read_text()) == tree_of(ARCHITECTURE)


def test_the_four_ways_name_modules_that_exist_in_numbered_steps() -> None:
    ways = re.split(r"^### ", section("Four ways through the house"), flags=re.MULTILINE)[1:]
    assert len(ways) == 4
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
