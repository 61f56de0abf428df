"""The rows on which a function over columns fails, for its error.

Guarantees that the rows hold an error of the same type as the whole columns do. Often it is one row
alone: a search calls the function on halves. Cost: calls on twice the rows, once before a flow
ends.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from meander.dataflow.collections.reduce import Groups
from meander.dataflow.operators.error_policy import failure, safe_repr
from meander.state.encoding.value_columns import Column

Argument = Column | Groups
"""A column of one value per row, or the groups of all rows."""


@dataclass(frozen=True, slots=True)
class FailingRows:
    """Rows, as the arguments of a function, and its error on them."""

    arguments: Sequence[Argument]
    error: BaseException

    def __len__(self) -> int:
        keys = self.arguments[0]
        assert not isinstance(keys, Groups)
        return len(keys)

    def narrowed(self, function: Callable[..., object]) -> FailingRows:
        """Return the first of these rows on which the function fails alone, or as few as it fails
        on."""
        rows = self
        while (half := rows._failing_half(function)) is not None:
            rows = half
        return rows

    def __str__(self) -> str:
        """Describe the rows by the first one.

        >>> import numpy as np
        >>> str(FailingRows([np.array([3]), np.array([9])], ValueError()))
        'key 3, value 9'
        >>> str(FailingRows([np.array([3]), np.array([9]), np.array([4])], ValueError()))
        'key 3, values 9 and 4'
        >>> groups = Groups(np.array([0, 2, 2]), np.array([4, 5]), np.array([1, 1]))
        >>> str(FailingRows([np.array([3, 8]), groups], ValueError()))
        '2 rows, the first with key 3, 2 distinct values'
        """
        if not len(self):
            return "columns without rows"
        keys, *others = map(_first, self.arguments)
        match self.arguments:
            case [_, Groups()]:
                (values,) = others
            case _:
                values = f"value{'s' * (len(others) > 1)} {' and '.join(others)}"
        first = f"key {keys}, {values}"
        return first if len(self) == 1 else f"{len(self)} rows, the first with {first}"

    def _failing_half(self, function: Callable[..., object]) -> FailingRows | None:
        middle = len(self) // 2
        for first, end in ((0, middle), (middle, len(self))) if middle else ():
            half = [_between(one, first, end) for one in self.arguments]
            try:
                function(*half)
            except failure() as error:
                # Few rows may be an error of another kind, such as one of shapes.
                if type(error) is type(self.error):
                    return FailingRows(half, error)
        return None


def _between(argument: Argument, first: int, end: int) -> Argument:
    if isinstance(argument, Groups):
        return argument.between(first, end)
    return argument[first:end]


def _first(argument: Argument) -> str:
    """Describe the value of the first row."""
    if isinstance(argument, Groups):
        count = int(argument.starts[1] - argument.starts[0])
        return f"{count} distinct value{'s' * (count != 1)}"
    (value,) = argument[:1].tolist()
    return safe_repr(value)
