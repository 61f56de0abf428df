"""Errors of the rows of a batch, so that a sink can still write its other rows."""

from __future__ import annotations

from collections.abc import Mapping

from meander.schemas.errors import MeanderError


class RowError(MeanderError):
    """An error that reports a row that a sink cannot write; the sink has written no row of its
    batch.

    >>> RowError(3, "topic 'totals'", "its value is no JSON").row
    3
    """

    def __init__(self, row: int, subject: str, cause: str, remedy: str = "") -> None:
        self.row = row
        """The index of the row in the batch."""
        self.all: list[RowError] = [self]
        """All errors of the batch, by row, where this is the first."""
        super().__init__(subject, cause, remedy)

    @staticmethod
    def first(errors: Mapping[int, RowError]) -> RowError:
        """Return the first error of a batch, with all errors in order. `errors` maps rows to
        errors.

        >>> ones = {row: RowError(row, "topic 'totals'", "no JSON") for row in (4, 2)}
        >>> [one.row for one in RowError.first(ones).all]
        [2, 4]
        """
        ordered = [errors[row] for row in sorted(errors)]
        ordered[0].all = ordered
        return ordered[0]
