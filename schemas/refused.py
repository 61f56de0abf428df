"""Records of a batch that a sink refuses, so that the others can still leave."""

from __future__ import annotations

from collections.abc import Mapping

from meander.schemas.errors import MeanderError


class RowRefused(MeanderError):
    """A sink cannot write a row, and has written none of its batch.

    >>> RowRefused(3, "topic 'totals'", "its value is no JSON").row
    3
    """

    def __init__(self, row: int, concerns: str, cause: str, remedy: str = "") -> None:
        self.row = row
        """Its index in the batch."""
        self.all: list[RowRefused] = [self]
        """The refusals of a batch, by row, where this is the first."""
        super().__init__(concerns, cause, remedy)

    @staticmethod
    def first(refused: Mapping[int, RowRefused]) -> RowRefused:
        """The first refusal of a batch, with all of them; they are given by row.

        >>> ones = {row: RowRefused(row, "topic 'totals'", "no JSON") for row in (4, 2)}
        >>> [one.row for one in RowRefused.first(ones).all]
        [2, 4]
        """
        found = [refused[row] for row in sorted(refused)]
        found[0].all = found
        return found[0]
