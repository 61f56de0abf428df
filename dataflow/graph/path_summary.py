"""Path summaries: what a path through the graph makes of a time (Naiad 2.1, nested scopes).

A path keeps the first coordinates of a time, adding to each, and appends others. Entering a scope
appends a 0, leaving strips the last coordinate, a feedback edge adds a round. Summaries compose
along paths and are partially ordered by what they make of every time, so that the least of all
paths stand for all. Cost: O(depth of the scope), nothing for the identity.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from operator import add

from meander.state.times.time import Time


@dataclass(frozen=True, slots=True)
class Summary:
    """What is added to each coordinate that is kept, and the coordinates behind them."""

    kept: tuple[int, ...]
    appended: tuple[int, ...] = ()

    @staticmethod
    def between(depth: int, target: int) -> Summary:
        """Of an edge from a scope of some depth to one inside it, around it, or the same.

        >>> Summary.between(1, 2).advance(7), Summary.between(2, 1).advance((7, 3))
        ((7, 0), 7)
        """
        return Summary((0,) * min(depth, target), (0,) * (target - depth))

    @staticmethod
    def round(depth: int) -> Summary:
        """Of a feedback edge in a scope of some depth.

        >>> Summary.round(2).advance((7, 3))
        (7, 4)
        """
        return Summary((*(0,) * (depth - 1), 1))

    def advance(self, time: Time) -> Time:
        """The least time that can result over the path.

        >>> Summary((0,)).advance(7), Summary((1, 0)).advance((7, 3)), Summary((2,)).advance((7, 3))
        (7, (8, 3), 9)
        """
        if isinstance(time, int):
            if self.kept == (0,) and not self.appended:
                return time
            time = (time,)
        elif len(time) == len(self.kept) and not (self.appended or any(self.kept)):
            return time
        if len(time) < len(self.kept):
            raise TypeError(f"{self} does not fit the time {time!r}")
        made = (*map(add, time, self.kept), *self.appended)
        return made if len(made) > 1 else made[0]

    def then(self, following: Summary) -> Summary:
        """The summary of this path and one that follows it.

        >>> Summary.between(1, 2).then(Summary.round(2)), Summary.round(2).then(Summary((0,)))
        (Summary(kept=(0,), appended=(1,)), Summary(kept=(0,), appended=()))
        """
        mine = len(self.kept)
        kept = tuple(map(sum, zip(self.kept, following.kept, strict=False)))
        appended = tuple(map(sum, zip(self.appended, following.kept[mine:], strict=False)))
        return Summary(kept, (*appended, *following.appended))

    def less_equal(self, other: Summary) -> bool:
        """Whether this makes of no time more than the other does.

        >>> Summary((0,), (0,)).less_equal(Summary((0, 1)))
        True
        >>> Summary((0, 1)).less_equal(Summary((1,), (0,)))
        False
        """
        mine, others = (*self.kept, *self.appended), (*other.kept, *other.appended)
        # A coordinate that is kept can be any number, one that is appended is known.
        comparable = len(self.kept) <= len(other.kept) and len(mine) == len(others)
        return comparable and all(a <= b for a, b in zip(mine, others, strict=True))


def least(summaries: Iterable[Summary]) -> tuple[Summary, ...]:
    """The minimal ones, each once."""
    found: list[Summary] = []
    for summary in summaries:
        if not any(known.less_equal(summary) for known in found):
            found = [known for known in found if not summary.less_equal(known)]
            found.append(summary)
    return tuple(found)
