"""The arrangements of a flow as its checkpoints describe them, so a view needs no flow."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import starmap
from typing import NamedTuple

from meander.state.keys.ids import Bin
from meander.state.times.time import Time


class KeptArrangement(NamedTuple):
    """An arrangement that an operator reads or fills, and the place of its rows."""

    operator: str
    name: str
    """Its name at the operator: `output`, `input`, `left` or `right`."""
    kept_by: str
    """The operator whose states hold its rows."""
    number: int
    """Its number in these states."""


class UnreadRows(NamedTuple):
    """The place from which an operator has not read the rows of a bin in another's arrangement."""

    operator: str
    input: int
    """The input that reads the arrangement."""
    bin: Bin
    times: tuple[Time, ...]
    """The least times of these rows, in the scope of the arrangement."""


class OperatorFrontier(NamedTuple):
    """A lower bound of the outer times at which the states of an operator may still change."""

    operator: str
    time: int


def least_frontiers(parts: Iterable[Iterable[OperatorFrontier]]) -> tuple[OperatorFrontier, ...]:
    """Return for each operator the least frontier of all workers.

    >>> least_frontiers([[OperatorFrontier("join", 7)], [OperatorFrontier("join", 5)]])
    (OperatorFrontier(operator='join', time=5),)
    """
    found = dict[str, int]()
    for part in parts:
        for operator, time in part:
            found[operator] = min(time, found.get(operator, time))
    return tuple(starmap(OperatorFrontier, found.items()))
