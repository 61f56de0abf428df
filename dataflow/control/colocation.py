"""The colocation groups: stateful operators whose bins move together, and those that move alone.

Commands and decisions number the bins of all groups consecutively. The bins of the default group
begin at 0. Those of an operator that moves alone begin at a multiple of the bin count. Ownership
therefore needs numbers alone. An operator and its layers number their own bins from 0. Cost:
negligible.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from meander.state.keys.ids import Bin, WorkerId

DEFAULT_GROUP = ""
"""The name of the group of all operators that move together."""


class ColocationGroups:
    """A table of the colocation groups of a flow, with `count` bins each.

    `alone` maps each operator to whether it moves alone.

    >>> groups = ColocationGroups(4, {"a": False, "b": True, "c": False})
    >>> groups.number("a", Bin(3)), groups.number("b", Bin(3))
    (3, 7)
    >>> groups.operators(Bin(3)), groups.operators(Bin(7)), groups.local_bin(Bin(7))
    (['a', 'c'], ['b'], 3)
    """

    def __init__(self, count: int, alone: Mapping[str, bool]) -> None:
        self.count = count
        self.names = [DEFAULT_GROUP, *(name for name, moves_alone in alone.items() if moves_alone)]
        """The names of all groups. An operator that moves alone gives its group its name."""
        self._of = {name: self.names.index(name) if alone[name] else 0 for name in alone}
        self._operators = [
            [name for name, group in self._of.items() if group == n] for n in range(len(self.names))
        ]

    @property
    def total(self) -> int:
        """Return the number of bins in all groups."""
        return self.count * len(self.names)

    def group_of(self, operator: str) -> str:
        """Return the group of an operator."""
        return self.names[self._of[operator]]

    def first_bin(self, group: str) -> int:
        """Return the number of a group's first bin."""
        return self.names.index(group) * self.count

    def number(self, operator: str, bin: Bin) -> Bin:
        """Return the number, among all groups, of a bin of an operator or group."""
        return Bin(self._of.get(operator, 0) * self.count + bin)

    def by_group(self, owners: Sequence[WorkerId]) -> dict[str, dict[Bin, WorkerId]]:
        """Return the owners of all bins, by group."""
        return {
            group: {Bin(b): owners[self.first_bin(group) + b] for b in range(self.count)}
            for group in self.names
        }

    def local_bin(self, number: Bin) -> Bin:
        """Return the number of a bin in its group, as operators use it."""
        return Bin(number % self.count)

    def group_of_bin(self, number: Bin) -> str:
        """Return the group of a bin."""
        return self.names[number // self.count]

    def operators(self, number: Bin) -> Sequence[str]:
        """Return the operators of a bin."""
        return self._operators[number // self.count]
