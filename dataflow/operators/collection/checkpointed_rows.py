"""The contents of an arrangement at a time, from the entries of its bins in a checkpoint.

Guarantees the rows that the arrangement held at that time, or an error: the rows of a bin tell no
times apart before its `since`, and a checkpoint lacks updates from the operator's frontier on.
Cost: one sort of the rows.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from meander.dataflow.collections.dictionary import Dictionary
from meander.dataflow.operators.collection.row_type import is_word
from meander.dataflow.operators.collection.stored_updates import StoredRows
from meander.dataflow.operators.collection.updates import UpdateCoding
from meander.schemas.errors import SetupError
from meander.state.checkpoint.arrangements import KeptArrangement
from meander.state.checkpoint.checkpoint import Checkpoint
from meander.state.collections.columns import Int64s, UInt64s
from meander.state.collections.kernels import hashes_of
from meander.state.collections.layer import Updates
from meander.state.encoding.object_column import ObjectColumn
from meander.state.encoding.value_columns import Column
from meander.state.times.time import END_TIME, MIN_TIME, before_millis, to_millis

NONE = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class CollectionRows:
    """The rows of a collection at an outer time, each with its count, which is not 0. Integers are
    sorted."""

    time: int
    keys: Column
    values: Column
    counts: Int64s

    @staticmethod
    def at(updates: Iterable[Updates], time: int, coding: UpdateCoding) -> CollectionRows:
        """Return the rows that updates add up to at an outer time, over all iterations.

        >>> numbers = UpdateCoding(Dictionary(), key=False, value=False)
        >>> some = Updates.of([(7, 1, (4, 2), 1), (7, 1, (6, 0), 1), (7, 1, (9, 0), -2)], depth=2)
        >>> [CollectionRows.at([some], time, numbers).counts.tolist() for time in (3, 5, 6, 9)]
        [[], [1], [2], []]
        """
        before = [some.take(np.flatnonzero(some.times[:, 0] <= time)) for some in updates]
        keys = np.concatenate([NONE, *(some.keys for some in before)])
        values = np.concatenate([NONE, *(some.values for some in before)])
        diffs = np.concatenate([NONE, *(some.diffs for some in before)])
        order = np.lexsort((values, keys))
        keys, values, diffs = keys[order], values[order], diffs[order]
        first = np.ones(len(keys), np.bool_)
        first[1:] = (keys[1:] != keys[:-1]) | (values[1:] != values[:-1])
        starts = np.flatnonzero(first)
        counts = np.add.reduceat(diffs, starts) if len(starts) else NONE
        left = np.flatnonzero(counts)
        columns = coding.columns(keys[starts[left]], values[starts[left]])
        return CollectionRows(time, *columns, counts[left])

    def of_key(self, text: str) -> CollectionRows:
        """Return the rows of the key that a text names."""
        named, keys = named_keys(text), self.keys
        if isinstance(keys, ObjectColumn):
            rows = np.flatnonzero(keys.isin(named))
        else:
            rows = np.flatnonzero(np.isin(keys, [key for key in named if isinstance(key, int)]))
        return CollectionRows(self.time, self.keys[rows], self.values[rows], self.counts[rows])


def named_keys(text: str) -> list[object]:
    """Return the keys that a text may name: the text itself, and the value that it is as JSON.

    >>> named_keys("7"), named_keys("Rome")
    (['7', 7], ['Rome'])
    """
    try:
        return [text, json.loads(text)]
    except ValueError:
        return [text]


def key_hashes(text: str) -> UInt64s:
    """Return the hashes of the keys that a text may name."""
    named = named_keys(text)
    codes = ObjectColumn.of(named).codes
    words = [key for key in named if is_word(key)]
    return hashes_of(np.concatenate([codes, np.array(words, np.int64)]))


def find_arrangement(checkpoint: Checkpoint, operator: str, name: str | None) -> KeptArrangement:
    """Return an arrangement of an operator by its name; the default is the operator's answer.

    Raise SetupError where there is none.
    """
    known = checkpoint.cut.arrangements
    of_operator = {one.name: one for one in known if one.operator == operator}
    if not of_operator:
        others = ", ".join(dict.fromkeys(one.operator for one in known))
        raise SetupError(
            f"operator {operator!r}",
            f"checkpoint {checkpoint.number} has no collection of an operator of that name",
            f"name one of these: {others}" if others else "name a flow with collections by key",
        )
    wanted = "output" if name is None else name
    if wanted in of_operator:
        return of_operator[wanted]
    raise SetupError(
        f"operator {operator!r}",
        "it keeps no answer" if name is None else f"it has no arrangement {name!r}",
        f"name one of its arrangements: {_options(of_operator)}",
    )


def newest_time(checkpoint: Checkpoint, arrangement: KeptArrangement) -> int:
    """Return the last outer time of which a checkpoint has all updates of an arrangement;
    `END_TIME` at the end of the input. Raise SetupError where there is none."""
    frontier = dict(checkpoint.cut.frontiers)[arrangement.kept_by]
    if frontier == MIN_TIME:
        raise SetupError(
            f"checkpoint {checkpoint.number}",
            f"operator {arrangement.kept_by!r} had completed no time",
            "name a later checkpoint",
        )
    return END_TIME if frontier == END_TIME else frontier - 1


def rows_at(
    checkpoint: Checkpoint,
    arrangement: KeptArrangement,
    bins: Iterable[Iterable[tuple[bytes, bytes]]],
    millis: int | None,
) -> CollectionRows:
    """Return the contents of an arrangement at the end of a millisecond, or at the newest time.

    `bins` are the entries of each bin. Raise SetupError where these do not tell the contents.
    """
    newest = newest_time(checkpoint, arrangement)
    time = newest if millis is None else before_millis(millis + 1)
    if time > newest:
        last = to_millis(newest + 1) - 1
        raise _untold(
            checkpoint, arrangement, time, f"the checkpoint is complete up to {last} ms",
            f"give --as-of {last} or earlier, leave it out, or take a later checkpoint",
        )  # fmt: skip
    dictionary = Dictionary()
    found = (StoredRows.of(entries, dictionary).get(arrangement.number) for entries in bins)
    stored = [one for one in found if one is not None]
    since = max((one.since for one in stored), default=MIN_TIME)
    if time < since:
        least = to_millis(since)
        later = (
            f"give --as-of {least} or later, or an earlier" if since <= newest else "name a later"
        )
        raise _untold(
            checkpoint, arrangement, time, f"its rows no longer tell apart times before {least} ms",
            f"{later} --checkpoint",
        )  # fmt: skip
    updates = [some for one in stored for some in one.updates]
    # A bin without rows does not tell what its columns would hold.
    coded = next((one.coded for one in stored if one.updates), (False, False))
    return CollectionRows.at(updates, time, UpdateCoding(dictionary, *coded))


def _untold(
    checkpoint: Checkpoint, arrangement: KeptArrangement, time: int, cause: str, remedy: str
) -> SetupError:
    return SetupError(
        f"arrangement {arrangement.name!r} of operator {arrangement.operator!r} at"
        f" {to_millis(time)} ms, checkpoint {checkpoint.number}",
        cause,
        remedy,
    )


def _options(names: Iterable[str]) -> str:
    return ", ".join(f"--arrangement {name}" for name in names)
