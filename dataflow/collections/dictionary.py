"""The dictionary of a worker: the Python values for which the codes in its collections stand.

Guarantees that each code in an arrangement, in a waiting update or in a column that leaves has its
value here. A value enters with the column that brings it. Invariant: a mapping of entries loses
none, as columns share it. So the entries in use are copied to a new mapping, in slices, once the
mapping has twice as many entries as were in use before (Baker's copying collector). Cost: a
comparison of mappings per column, and now and then one pass over the codes in use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from meander.schemas.errors import MeanderError
from meander.state.encoding import codec
from meander.state.encoding.object_column import Codes, ObjectColumn
from meander.state.encoding.value_columns import Column

LEAST = 10_000
"""The entries below which the dictionary keeps all."""
CodesInUse = Callable[[], Iterator[Codes] | None]
"""Returns the columns of codes that an operator holds, or None amid a step."""


class Dictionary:
    """The values of the codes of one worker.

    >>> dictionary = Dictionary()
    >>> codes = dictionary.codes(ObjectColumn.of(["Rome", "Oslo"]))
    >>> dictionary.column(codes[::-1]).tolist()
    ['Oslo', 'Rome']
    """

    def __init__(self) -> None:
        self._entries: dict[int, bytes] = {}
        self._former: dict[int, bytes] | None = None
        """The entries of which those in use are being copied."""
        self._uncopied: Iterator[Codes] = iter(())
        self._holders: list[CodesInUse] = []
        self._most = LEAST

    def add_holder(self, codes: CodesInUse) -> None:
        """Add an operator, whose codes stay."""
        self._holders.append(codes)

    def codes(self, column: Column) -> Codes:
        """Return the codes of a column, whose values the dictionary has from now on; a column of
        integers as it is. Raise MeanderError where two values have one code."""
        if not isinstance(column, ObjectColumn):
            return column
        if column.entries is not self._entries:
            self._add(column)
        return column.codes

    def column(self, codes: Codes) -> ObjectColumn:
        """Return a column of the values of some codes."""
        if self._former is not None:
            self._copy(codes)
        return ObjectColumn(codes, self._entries)

    def value(self, code: int) -> object:
        """Return the value of a code."""
        return self.column(np.array([code]))[0]

    def collect(self, rows: int) -> bool:
        """Copy entries in use until `rows` codes have been looked at, or begin to, where that is
        due; return whether it was."""
        if self._former is None and (len(self._entries) < self._most or not self._begin()):
            return False
        for codes in self._uncopied:
            self._copy(codes)
            rows -= len(codes)
            if rows <= 0:
                return True
        self._former, self._most = None, max(LEAST, 2 * len(self._entries))
        return True

    def __len__(self) -> int:
        return len(self._entries)

    def _add(self, column: ObjectColumn) -> None:
        entries, used = self._entries, column.used
        for code, data in used.items():
            if entries.setdefault(code, data) != data:
                one, other = (codec.decode(found) for found in (entries[code], data))
                raise MeanderError(
                    "collection", f"the values {one!r} and {other!r} have the same hash",
                    "change one of them",
                )  # fmt: skip

    def _begin(self) -> bool:
        """Begin to copy the entries in use; return whether no operator is amid a step."""
        held = [codes() for codes in self._holders]
        if any(codes is None for codes in held):
            return False
        self._former, self._entries = self._entries, {}
        self._uncopied = (codes for some in held for codes in some or ())
        return True

    def _copy(self, codes: Codes) -> None:
        assert self._former is not None
        entries, former = self._entries, self._former
        for code in np.unique(codes).tolist():
            if code not in entries:
                entries[code] = former[code]
