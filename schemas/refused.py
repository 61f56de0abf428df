"""The one record of a batch that an outside cannot take, so that the others can still go."""

from schemas.errors import MeanderError


class RowRefused(MeanderError):
    """A sink cannot write a row, and has written none of its batch.

    >>> RowRefused(3, "topic 'totals'", "its value is no JSON").row
    3
    """

    def __init__(self, row: int, concerns: str, cause: str, remedy: str = "") -> None:
        self.row = row
        """Its index in the batch."""
        super().__init__(concerns, cause, remedy)
