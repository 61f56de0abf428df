"""Times of nested scopes: an outer time, and the iterations of the loops around it.

Stateful operators apply records in the total order (outer time, iterations, ...), which the product
order of frontiers does not know. Guarantees that no later record precedes one that
`passed_frontier` releases. A time at or after an element of a frontier in the product order is not
before the least element in the total order. Cost: nothing in the outer scope.
"""

from __future__ import annotations

from meander.state.times.antichain import Antichain
from meander.state.times.time import Time

Iterations = tuple[int, ...]
"""The iterations of the loops from outside in; () in the outer scope."""


def outer_time(time: Time) -> int:
    """Return the outer coordinate of a time.

    >>> outer_time(7), outer_time((7, 3))
    (7, 7)
    """
    return time if isinstance(time, int) else time[0]


def iterations_of(time: Time) -> Iterations:
    """Return the iterations of a time.

    >>> iterations_of(7), iterations_of((7, 3))
    ((), (3,))
    """
    return () if isinstance(time, int) else time[1:]


def nested_time(time: int, iterations: Iterations) -> Time:
    """Return the time of some iterations at an outer time.

    >>> nested_time(7, ()), nested_time(7, (3,))
    (7, (7, 3))
    """
    return (time, *iterations) if iterations else time


def total_order_key(time: Time) -> tuple[int, Iterations]:
    """Return the key that compares times in the total order.

    >>> total_order_key(7), total_order_key((7, 3))
    ((7, ()), (7, (3,)))
    """
    return outer_time(time), iterations_of(time)


def outer_frontier(frontier: Antichain) -> Antichain:
    """Return the frontier of outer times that follows from a frontier.

    >>> outer_frontier(Antichain.of((5, 2), (7, 0))).times
    (5,)
    """
    if not any(isinstance(time, tuple) for time in frontier.times):
        return frontier
    return Antichain.of(*map(outer_time, frontier))


def passed_frontier(frontier: Antichain, iterations: Iterations) -> Antichain:
    """Return the frontier of outer times that a frontier has passed in the total order, for records
    of some iterations.

    >>> frontier = Antichain.of((5, 2), (7, 0))
    >>> passed_frontier(frontier, (1,)).times, passed_frontier(frontier, (2,)).times
    ((6,), (5,))
    """
    if not iterations or not frontier:
        return frontier
    time, least = min(map(total_order_key, frontier))
    return Antichain.of(time + (iterations < least))
