"""The balance of bins and partitions over workers with the fewest moves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from meander.state.keys.ids import WorkerId

T = TypeVar("T")


def shared_out(things: Sequence[T], workers: Sequence[WorkerId]) -> dict[WorkerId, tuple[T, ...]]:
    """Distribute bins or partitions evenly over workers. Return the share of each worker that gets
    any.

    >>> shared_out([4, 5, 9], [WorkerId(1), WorkerId(2)])
    {1: (4, 9), 2: (5,)}
    """
    shares = {worker: tuple(things[n :: len(workers)]) for n, worker in enumerate(workers)}
    return {worker: share for worker, share in shares.items() if share}


def share_of(
    owners: Mapping[T, WorkerId], newcomers: Sequence[WorkerId], workers: Sequence[WorkerId]
) -> dict[WorkerId, tuple[T, ...]]:
    """Return the bins or partitions that joining workers get, so that each worker has an even
    share. The worker with the largest share gives first. Other `workers` give each other none.

    >>> owners = dict.fromkeys("abcdefg", WorkerId(0))
    >>> share_of(owners, [WorkerId(1), WorkerId(2)], [WorkerId(0), WorkerId(1), WorkerId(2)])
    {1: ('g', 'e'), 2: ('f', 'd')}
    """
    held: dict[WorkerId, list[T]] = {worker: [] for worker in workers}
    for thing, owner in owners.items():
        if owner in held:
            held[owner].append(thing)
    share = sum(map(len, held.values())) // len(workers)
    given: dict[WorkerId, list[T]] = {worker: [] for worker in newcomers}
    for _ in range(share):
        for worker in newcomers:
            most = max(held, key=lambda one: len(held[one]))
            if len(held[worker]) + len(given[worker]) < share < len(held[most]):
                given[worker].append(held[most].pop())
    return {worker: tuple(things) for worker, things in given.items() if things}
