"""Path summaries: how a path through the graph changes a time (Naiad 2.1, nested scopes).

A path keeps the first coordinates of a time, adds to each, and appends others. Entering a scope
appends a 0. Leaving a scope removes the last coordinate. A feedback edge adds an iteration.

Summaries compose along paths. Their results on every time order them partially, so the least
summaries stand for all paths. Cost: O(depth of the scope), nothing for the identity.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from operator import add

from meander.state.times.time import Time


@dataclass(frozen=True, slots=True)
class Summary:
    """A path summary: the increment of each kept coordinate, and the appended coordinates."""

    kept: tuple[int, ...]
    appended: tuple[int, ...] = ()

    @staticmethod
    def between(depth: int, target: int) -> Summary:
        """Return the summary of an edge from a scope of depth `depth` to one inside it, to its
        parent, or to itself.

        >>> Summary.between(1, 2).results_in(7), Summary.between(2, 1).results_in((7, 3))
        ((7, 0), 7)
        """
        return Summary((0,) * min(depth, target), (0,) * (target - depth))

    @staticmethod
    def feedback(depth: int) -> Summary:
        """Return the summary of a feedback edge in a scope of depth `depth`.

        >>> Summary.feedback(2).results_in((7, 3))
        (7, 4)
        """
        return Summary((*(0,) * (depth - 1), 1))

    def results_in(self, time: Time) -> Time:
        """Return the least time that the path can produce from a time.

        >>> Summary((1, 0)).results_in((7, 3)), Summary((2,)).results_in((7, 3))
        ((8, 3), 9)
        """
        if isinstance(time, int):
            if self.kept == (0,) and not self.appended:
                return time
            time = (time,)
        elif len(time) == len(self.kept) and not (self.appended or any(self.kept)):
            return time
        if len(time) < len(self.kept):
            raise TypeError(f"{self} does not fit the time {time!r}")
        coordinates = (*map(add, time, self.kept), *self.appended)
        return coordinates if len(coordinates) > 1 else coordinates[0]

    def followed_by(self, following: Summary) -> Summary:
        """Return the summary of this path and a following one.

        >>> Summary.between(1, 2).followed_by(Summary.feedback(2))
        Summary(kept=(0,), appended=(1,))
        >>> Summary.feedback(2).followed_by(Summary((0,)))
        Summary(kept=(0,), appended=())
        """
        mine = len(self.kept)
        kept = tuple(map(sum, zip(self.kept, following.kept, strict=False)))
        appended = tuple(map(sum, zip(self.appended, following.kept[mine:], strict=False)))
        return Summary(kept, (*appended, *following.appended))

    def less_equal(self, other: Summary) -> bool:
        """Return whether this summary results in a time at most as late as the other, for all
        times.

        >>> Summary((0,), (0,)).less_equal(Summary((0, 1)))
        True
        >>> Summary((0, 1)).less_equal(Summary((1,), (0,)))
        False
        """
        mine, others = (*self.kept, *self.appended), (*other.kept, *other.appended)
        # A kept coordinate can be any number, and an appended one is known.
        comparable = len(self.kept) <= len(other.kept) and len(mine) == len(others)
        return comparable and all(a <= b for a, b in zip(mine, others, strict=True))


def least(summaries: Iterable[Summary]) -> tuple[Summary, ...]:
    """Return the minimal summaries, each once."""
    found: list[Summary] = []
    for summary in summaries:
        if not any(known.less_equal(summary) for known in found):
            found = [known for known in found if not summary.less_equal(known)]
            found.append(summary)
    return tuple(found)
