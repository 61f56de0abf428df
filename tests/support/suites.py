"""The suite of a test file, by its folder, and the order of the files of all suites.

A run of all tests in several processes takes its files in this order. Tests of `fault` and
`integration` wait most of their time, and the other ones compute, so each needs the other beside
it. Invariant: the order is a function of the set of files.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path

TESTS = Path(__file__).parents[1]
SUITES = "unit", "property", "integration", "fault"
"""Folders of tests; doctests of other files count as unit tests."""
LONGEST = "test_doc_commands.py"
"""The file whose tests take the longest: it begins."""


@cache
def suite_of(path: Path) -> str:
    """Return the suite of a file.

    >>> suite_of(TESTS / "fault" / "test_a.py"), suite_of(TESTS / "support" / "a.py")
    ('fault', 'unit')
    """
    folder = path.relative_to(TESTS).parts[0] if path.is_relative_to(TESTS) else "unit"
    return folder if folder in SUITES else "unit"


def spread(paths: Iterable[Path]) -> list[Path]:
    """Return files so that those of each suite are spread evenly over all.

    >>> names = [f"unit/test_{n}.py" for n in range(4)] + ["fault/test_a.py", "fault/test_b.py"]
    >>> [path.stem for path in spread(TESTS / name for name in names)]
    ['test_a', 'test_0', 'test_1', 'test_b', 'test_2', 'test_3']
    """
    suites: dict[str, list[Path]] = {suite: [] for suite in SUITES}
    for path in sorted(paths, key=lambda path: (path.name != LONGEST, path)):
        suites[suite_of(path)].append(path)
    placed = [(n / len(some), path) for some in suites.values() for n, path in enumerate(some)]
    return [path for _, path in sorted(placed)]
