"""The greatest results of each window over all keys, in two stages.

Guarantees one result per window, once all of its results are in: both stages wait for the
notification of their time. The first stage keeps the greatest of a part of the keys, so the second
one gets few results of each part. Equal ranks stand in the order of their encoded keys. Cost: a
sort of at most `n + 1` results for each result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypedDict

import xxhash

from meander.dataflow.operators.keyed.context import Context
from meander.dataflow.windows.aggregation import WindowResult
from meander.state.encoding import codec

PARTS: Final = 16
"""The parts of the keys in the first stage."""

Entry = tuple[Any, dict[str, Any]]
"""The rank of a result, and the result of a window."""


class WindowTop(TypedDict):
    """The greatest results of a window over all keys."""

    start: int
    """The first time of the window, in milliseconds since 1970."""
    end: int
    """The first time behind it."""
    value: list[Any]
    """The results of the window, the greatest first."""


def part_of(result: WindowResult) -> tuple[int, int, int]:
    """Return the window of a result, and the part of its key."""
    part = xxhash.xxh3_64_intdigest(codec.encode_key(result["key"])) % PARTS
    return result["start"], result["end"], part


def window_of(result: WindowResult | WindowTop) -> tuple[int, int]:
    """Return the window of a result."""
    return result["start"], result["end"]


@dataclass(frozen=True, slots=True)
class Top:
    """The process functions of both stages. `by` is a function of a result, or a field of its
    value; without it the value ranks."""

    count: int
    by: Callable[[Any], Any] | str | None

    def rank(self, result: dict[str, Any]) -> object:
        """Return what a result is ranked by."""
        if callable(self.by):
            return self.by(result)
        value = result["value"]
        return value if self.by is None else value[self.by]

    def greatest(self, entries: Sequence[Entry]) -> list[Entry]:
        """Return the greatest entries in order.

        >>> results = [(1, {"key": "b"}), (1, {"key": "a"}), (2, {"key": "c"})]
        >>> Top(2, None).greatest(results)
        [(2, {'key': 'c'}), (1, {'key': 'a'})]
        """
        by_key = sorted(entries, key=lambda entry: codec.encode_key(entry[1]["key"]))
        return sorted(by_key, key=lambda entry: entry[0], reverse=True)[: self.count]

    def add(self, context: Context, entries: Any, result: Any) -> object:  # noqa: ANN401 (as stored)
        """Keep a result if it is one of the greatest of its part."""
        context.notify()
        return self.greatest([*map(tuple, entries), (self.rank(result), result)])

    def give_part(self, context: Context, entries: Any) -> object:  # noqa: ANN401 (as stored)
        """Send the greatest results of a part."""
        start, end = window_of(entries[0][1])
        context._set_own_time(end - 1)
        context.emit({"start": start, "end": end, "value": entries})
        context.forget()
        return entries

    def add_part(self, context: Context, entries: Any, part: Any) -> object:  # noqa: ANN401 (as stored)
        """Keep those results of a part that are some of the greatest of all."""
        context.notify()
        return self.greatest([*map(tuple, entries), *map(tuple, part["value"])])

    def give(self, context: Context, entries: Any) -> object:  # noqa: ANN401 (as stored)
        """Send the greatest results of all parts."""
        start, end = window_of(entries[0][1])
        context._set_own_time(end - 1)
        top: WindowTop = {"start": start, "end": end, "value": [result for _, result in entries]}
        context.emit(top)
        context.forget()
        return entries
