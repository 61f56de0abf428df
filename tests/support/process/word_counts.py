"""Counts of words as they lie on a results topic: of each word they are a sequence (I9)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable


def each_once(results: Iterable[tuple[str, int]]) -> Counter[str]:
    """How many results each word has; they have to be 1, 2, 3, ... in the order given.

    >>> each_once([("to", 1), ("be", 1), ("to", 2)])
    Counter({'to': 2, 'be': 1})
    """
    last = Counter[str]()
    for word, count in results:
        last[word] += 1
        assert count == last[word], f"{count} of {word!r} is its {last[word]}th result"
    return last


def with_repeats(results: Iterable[tuple[str, int]]) -> Counter[str]:
    """The last count of each word; a recovery may go back, and repeats the results from there on.

    >>> with_repeats([("to", 1), ("to", 2), ("to", 1), ("to", 2), ("to", 3)])
    Counter({'to': 3})
    """
    last = Counter[str]()
    for word, count in results:
        assert 1 <= count <= last[word] + 1, f"{count} of {word!r} comes behind {last[word]}"
        last[word] = count
    return last
