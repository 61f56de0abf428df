"""The dependencies of Debian's packages as a graph of names, replayed with seeded changes.

Edges and names are real, as `apt-cache dumpavail` lists them. The changes are not: change 2n
removes an edge that the seed chooses, and change 2n + 1 adds it again.
"""

from __future__ import annotations

import random
import re
import subprocess
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from benchmarks.incremental.graph import RowChanges

Row = tuple[str, str, int]
"""A key, a value and a diff."""
COMMAND = ["apt-cache", "dumpavail"]
ROOT = ""
"""The key of a row that adds a root."""
_NAME = re.compile(r"[^\s(:,|]+")


def dependencies(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield each package with each one that it may depend on, from the lines of `dumpavail`.

    >>> text = "Package: vim", "Depends: vim-common (= 2:9.0), libc6 (>= 2.36) | libc6.1:any"
    >>> list(dependencies(text))
    [('vim', 'vim-common'), ('vim', 'libc6'), ('vim', 'libc6.1')]
    """
    package = ""
    for line in lines:
        name, _, text = line.partition(": ")
        if name == "Package":
            package = text.strip()
        elif name in {"Depends", "Pre-Depends"}:
            for one in re.split(r"[,|]", text):
                if found := _NAME.search(one):
                    yield package, found.group()


def installed_list() -> list[tuple[str, str]]:
    """Return the edges that `apt-cache` lists, each once, or none where the command is missing."""
    try:
        done = subprocess.run(COMMAND, capture_output=True, text=True, check=True)
    except (FileNotFoundError, subprocess.CalledProcessError):
        return []
    return sorted(set(dependencies(done.stdout.splitlines())))


def reached_from(edges: Sequence[tuple[str, str]], root: str) -> list[tuple[str, str]]:
    """Return the edges of all packages that a root needs, in their order.

    >>> reached_from([("a", "b"), ("b", "c"), ("x", "a")], "a")
    [('a', 'b'), ('b', 'c')]
    """
    needed = distances(edges, root)
    return [edge for edge in edges if edge[0] in needed]


def distances(edges: Sequence[tuple[str, str]], root: str) -> dict[str, int]:
    """Compute the distance of each package that a root needs from all edges.

    >>> distances([("a", "b"), ("b", "c"), ("a", "c")], "a")
    {'a': 0, 'b': 1, 'c': 1}
    """
    needs = dict[str, list[str]]()
    for package, other in edges:
        needs.setdefault(package, []).append(other)
    found, left = {root: 0}, deque([root])
    while left:
        package = left.popleft()
        for other in needs.get(package, ()):
            if other not in found:
                found[other] = found[package] + 1
                left.append(other)
    return found


@dataclass(slots=True)
class PackageGraph:
    """A graph of packages that changes, with the edges that it has at present."""

    listed: Sequence[tuple[str, str]]
    seed: int = 1
    missing: tuple[str, str] | None = None
    """The edge that was removed last, and is to be added again."""
    _rng: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self._rng = random.Random(self.seed)

    @property
    def edges(self) -> int:
        """Return the number of edges at first."""
        return len(self.listed)

    def initial(self, first: int, count: int) -> RowChanges:
        """Return the additions of some of the first edges."""
        return RowChanges([(*edge, 1) for edge in self.listed[first : first + count]])

    def changes(self, _: int, count: int) -> RowChanges:
        """Return the next changes."""
        return RowChanges([self._change() for _ in range(count)])

    @property
    def present(self) -> list[tuple[str, str]]:
        """Return the edges at present."""
        return [edge for edge in self.listed if edge != self.missing]

    def _change(self) -> Row:
        if self.missing is not None:
            edge, self.missing = self.missing, None
            return (*edge, 1)
        self.missing = self._rng.choice(self.listed)
        return (*self.missing, -1)
