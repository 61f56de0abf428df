"""Times of nested scopes: an outer time, and the iterations of the loops around it.

Stateful operators apply records in the total order (outer time, iterations, ...), which the product
order of frontiers does not know. Guarantees that no record to come precedes one that `settled` lets
pass. A time at or after a frontier's element in the product order is not before the least element
in the total order. Cost: nothing in the outer scope.
"""

from __future__ import annotations

from meander.state.times.antichain import Antichain
from meander.state.times.time import Time

Rounds = tuple[int, ...]
"""The iterations of the loops from outside in; () in the outer scope."""


def outer(time: Time) -> int:
    """Return the outer coordinate of a time.

    >>> outer(7), outer((7, 3))
    (7, 7)
    """
    return time if isinstance(time, int) else time[0]


def rounds_of(time: Time) -> Rounds:
    """Return the iterations of a time.

    >>> rounds_of(7), rounds_of((7, 3))
    ((), (3,))
    """
    return () if isinstance(time, int) else time[1:]


def at(time: int, rounds: Rounds) -> Time:
    """Return the time of some iterations at an outer time.

    >>> at(7, ()), at(7, (3,))
    (7, (7, 3))
    """
    return (time, *rounds) if rounds else time


def place(time: Time) -> tuple[int, Rounds]:
    """Return the key that compares times in the total order.

    >>> place(7), place((7, 3))
    ((7, ()), (7, (3,)))
    """
    return outer(time), rounds_of(time)


def outward(frontier: Antichain) -> Antichain:
    """Return the frontier of outer times that a frontier implies.

    >>> outward(Antichain.of((5, 2), (7, 0))).times
    (5,)
    """
    if not any(isinstance(time, tuple) for time in frontier.times):
        return frontier
    return Antichain.of(*map(outer, frontier))


def settled(frontier: Antichain, rounds: Rounds) -> Antichain:
    """Return the frontier of outer times that a frontier has passed in the total order, for records
    of some iterations.

    >>> frontier = Antichain.of((5, 2), (7, 0))
    >>> settled(frontier, (1,)).times, settled(frontier, (2,)).times
    ((6,), (5,))
    """
    if not rounds or not frontier:
        return frontier
    time, theirs = min(map(place, frontier))
    return Antichain.of(time + (rounds < theirs))
