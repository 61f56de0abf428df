"""What exactly once asks of the world outside: transactions, one after the other, of one worker."""

from __future__ import annotations

from typing import Protocol

from dataflow.once.marks import Mark


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
