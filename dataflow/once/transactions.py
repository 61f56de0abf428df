"""What exactly once asks of the world outside: transactions, one after the other, of one worker."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from dataflow.batch import Batch
from dataflow.once.marks import Mark
from dataflow.once.tally import Tally
from dataflow.protocols import SinkWriter


class Transactions(Protocol):
    """Those of one worker, over all of its sinks: what their writers take over becomes visible with
    the next commit, all of it or nothing."""

    @property
    def busy(self) -> bool:
        """Whether one is being committed. Raises MeanderError where one may have failed."""

    @property
    def waiting(self) -> bool:
        """Whether writers have taken anything over that no commit has begun to make visible."""

    def commit(self, mark: Mark) -> None:
        """Begin to make visible what has been taken over, with its mark, while none is `busy`."""

    def close(self) -> None:
        """Give up what is not committed."""


@runtime_checkable
class Tallying(SinkWriter, Protocol):
    """A sink's way out in transactions, which knows what it writes."""

    @property
    def taken(self) -> Tally:
        """Of all that it has taken over."""

    def tally(self, batch: Batch) -> Tally:
        """Of a batch, were it written. Raises RowRefused as `write`."""
