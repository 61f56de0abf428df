"""The balance of bins and partitions over workers with the fewest moves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from meander.state.keys.ids import WorkerId

T = TypeVar("T")


def distribute(items: Sequence[T], workers: Sequence[WorkerId]) -> dict[WorkerId, tuple[T, ...]]:
    """Distribute bins or partitions evenly over workers. Return each share that is not empty.

    >>> distribute([4, 5, 9], [WorkerId(1), WorkerId(2)])
    {1: (4, 9), 2: (5,)}
    """
    shares = {worker: tuple(items[n :: len(workers)]) for n, worker in enumerate(workers)}
    return {worker: share for worker, share in shares.items() if share}


def shares_for_joining(
    owners: Mapping[T, WorkerId], joining: Sequence[WorkerId], workers: Sequence[WorkerId]
) -> dict[WorkerId, tuple[T, ...]]:
    """Return the bins or partitions that joining workers get, so that all shares are even. The
    worker with the largest share gives first. The other workers keep their remaining items.

    >>> owners = dict.fromkeys("abcdefg", WorkerId(0))
    >>> workers = [WorkerId(n) for n in range(3)]
    >>> shares_for_joining(owners, workers[1:], workers)
    {1: ('g', 'e'), 2: ('f', 'd')}
    """
    held: dict[WorkerId, list[T]] = {worker: [] for worker in workers}
    for item, owner in owners.items():
        if owner in held:
            held[owner].append(item)
    share = sum(map(len, held.values())) // len(workers)
    added: dict[WorkerId, list[T]] = {worker: [] for worker in joining}
    for _ in range(share):
        for worker in joining:
            largest = max(held, key=lambda one: len(held[one]))
            if len(held[worker]) + len(added[worker]) < share < len(held[largest]):
                added[worker].append(held[largest].pop())
    return {worker: tuple(items) for worker, items in added.items() if items}
