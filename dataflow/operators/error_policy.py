"""The error policy of an operator: what happens to a record that a user function cannot process.

`dead_letter` (default) writes it as a dead letter with its traceback, `skip` counts it, `fail` ends
the flow. A `Retry` calls the function again first. Guarantees that no record is dropped in silence:
each policy counts.
"""

from __future__ import annotations

import sys
import traceback
from collections import Counter
from collections.abc import Iterable

from meander.dataflow.interfaces import DeadLetterTopic, DeadLetterWriter
from meander.dataflow.keepalive import NO_KEEPALIVE, Keepalive
from meander.dataflow.operators.retries import OnError, Retries, fallback
from meander.dataflow.records.batch import Batch, own_value
from meander.schemas.errors import MeanderError


def failure() -> type[BaseException] | tuple[()]:
    """Return the exceptions that `except failure()` attributes to the user function: all but
    KeyboardInterrupt, which ends the program.

    No tuple can name this set, as KeyboardInterrupt is a BaseException too. So the choice depends
    on the current exception.

    >>> try: raise GeneratorExit
    ... except failure() as error: print(describe(error))
    GeneratorExit
    """
    return () if isinstance(sys.exception(), KeyboardInterrupt) else BaseException


def describe(error: BaseException) -> str:
    """Describe the exception of a user function in words. Its text is user code too.

    >>> describe(KeyError("dest"))
    "KeyError: 'dest'"
    """
    try:
        text = str(error)
    except failure() as second:
        text = f"(its own text cannot be had: {type(second).__name__})"
    name = type(error).__name__
    return f"{name}: {text}" if text else name


def safe_repr(value: object) -> str:
    """Return the `repr` of a value, or a default one where it fails: `repr` is user code too, and
    rejects very long numbers.

    >>> safe_repr("N14228"), safe_repr(1 << 20_000)[:15]
    ("'N14228'", '<int object at ')
    """
    try:
        return repr(value)
    except failure():
        return object.__repr__(value)


class SinkDeadLetters:
    """The dead letters that one worker's sinks add together; implements `DeadLetterWriter`.

    Only the transaction loop calls `poll`. So a transaction that is due starts before the sinks
    write later results, whose dead letters it would have to await.
    """

    def __init__(self, dead: DeadLetterTopic) -> None:
        self._dead, self._last, self._durable = dead, 0, 0

    def add(self, operator: str, batch: Batch, row: int, reason: str, trace: str) -> None:
        """Write one record with the reason."""
        self._dead.add(operator, batch, row, reason, trace)
        self._last = self._dead.added

    def poll(self) -> None:
        """Update `durable`."""
        if not self.durable:
            self._durable = self._dead.delivered()

    @property
    def durable(self) -> bool:
        """Whether all dead letters of the sinks were durable at the last poll."""
        return self._durable >= self._last


class FunctionFailed(MeanderError):
    """An error that ends the flow, as a user function has failed under `fail`."""

    def __init__(self, subject: str, cause: str, remedy: str, trace: str) -> None:
        super().__init__(subject, cause, remedy)
        self.trace = trace
        """The traceback with the user's own lines."""


class Guard:
    """A guard that handles the errors of one operator's user functions on one worker."""

    def __init__(
        self,
        operator: str,
        policy: OnError,
        dead_letters: DeadLetterWriter,
        counters: Counter[str],
        keepalive: Keepalive = NO_KEEPALIVE,
        retries: Retries | None = None,
    ) -> None:
        self.operator, self._policy = operator, fallback(policy)
        self._dead_letters, self.counters, self.keepalive = dead_letters, counters, keepalive
        self.retries = retries
        """The retries of a policy that has some, or None."""

    def own_values(self, batch: Batch) -> Iterable[object]:
        """Return the values of a batch for one pass. With retries each is a copy, as a function may
        change it before it fails."""
        return batch.values if self.retries is None else map(own_value, batch.values)

    def stops(self, batch: Batch, row: int, due: int | None = None) -> bool:
        """Return whether a function that has failed is called again on this record, so the pass
        stops here. `due` is the time of the clock at which an alarm was due."""
        return self.retries is not None and self.retries.again(batch, row, due)

    def end_pass(self, rows: int) -> int:
        """Return how many of the `rows` records of a pass are done. The others wait."""
        return rows if self.retries is None else self.retries.end_pass(rows)

    @property
    def waiting(self) -> bool:
        """Return whether a record waits for the time of its next call."""
        return self.retries is not None and self.retries.waiting

    def failed(self, batch: Batch, row: int, error: BaseException) -> None:
        """Apply the error policy to one record, without another call. Raises FunctionFailed under
        `fail`."""
        if self._policy == "skip":
            self.counters["skipped"] += 1
            return
        reason, trace = describe(error), "".join(traceback.format_exception(error))
        if self._policy == "fail":
            where = f"partition {batch.partitions[row]}, offset {batch.offsets[row]}"
            raise FunctionFailed(
                f"operator {self.operator!r}",
                f"its function failed on the record of {where}: {reason}",
                "mend the function, or choose on_error='dead_letter' or 'skip'",
                trace,
            ) from error
        self.counters["dead_letters"] += 1
        self._dead_letters.add(self.operator, batch, row, reason, trace)
