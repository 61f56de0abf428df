"""Groups of stateful operators whose bins move together: most in one, and those that move alone.

Where moves are spoken of, the bins of all groups are numbered through: the first group's from 0 on,
and those of an operator that moves alone from a multiple of their count on. So all that decides who
owns a bin, and when, knows numbers only; an operator, its states and what lies of them on the state
topic know their own bins, which begin at 0. Cost: none to speak of.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from meander.state.keys.ids import Bin, WorkerId

DEFAULT_GROUP = ""
"""The name of the group that is no single operator."""


class ColocationGroups:
    """Those of a flow, with so many bins each; `alone` says of each operator whether it moves so.

    >>> groups = ColocationGroups(4, {"a": False, "b": True, "c": False})
    >>> groups.number("a", Bin(3)), groups.number("b", Bin(3))
    (3, 7)
    >>> groups.operators(Bin(3)), groups.operators(Bin(7)), groups.own(Bin(7))
    (['a', 'c'], ['b'], 3)
    """

    def __init__(self, count: int, alone: Mapping[str, bool]) -> None:
        self.count = count
        self.names = [DEFAULT_GROUP, *(name for name, moves_alone in alone.items() if moves_alone)]
        """An operator that moves alone is a group of its name."""
        self._of = {name: self.names.index(name) if alone[name] else 0 for name in alone}
        self._operators = [
            [name for name, group in self._of.items() if group == n] for n in range(len(self.names))
        ]

    @property
    def total(self) -> int:
        """How many bins there are in all groups."""
        return self.count * len(self.names)

    def of(self, operator: str) -> str:
        """The group of an operator."""
        return self.names[self._of[operator]]

    def first(self, group: str) -> int:
        """The number of a group's first bin."""
        return self.names.index(group) * self.count

    def number(self, operator: str, bin: Bin) -> Bin:
        """The number of an operator's bin, or of a group's."""
        return Bin(self._of.get(operator, 0) * self.count + bin)

    def apart(self, owners: Sequence[WorkerId]) -> dict[str, dict[Bin, WorkerId]]:
        """The owners of all bins, by group."""
        return {
            group: {Bin(b): owners[self.first(group) + b] for b in range(self.count)}
            for group in self.names
        }

    def own(self, number: Bin) -> Bin:
        """What its operators call a bin."""
        return Bin(number % self.count)

    def group(self, number: Bin) -> str:
        """Whose bin it is."""
        return self.names[number // self.count]

    def operators(self, number: Bin) -> Sequence[str]:
        """Those that a bin is of."""
        return self._operators[number // self.count]
