"""What happens to a record that a user's function cannot take, per operator.

`dead_letter` (default) sets it aside with its traceback, `skip` counts it, `fail` ends the flow.
A record is never dropped in silence: each policy counts.
"""

from __future__ import annotations

import sys
import traceback
from collections import Counter
from typing import Literal

from meander.dataflow.interfaces import DeadLetters
from meander.dataflow.keepalive import NO_KEEPALIVE, Keepalive
from meander.dataflow.records.batch import Batch
from meander.schemas.errors import MeanderError

OnError = Literal["dead_letter", "skip", "fail"]


def failure() -> type[BaseException] | tuple[()]:
    """The exceptions that `except failure()` takes for the user's function's own: all but
    KeyboardInterrupt, which somebody else wants of the program.

    A class that no tuple can name, as KeyboardInterrupt is a BaseException too: so it is chosen
    when the exception is there.

    >>> try: raise GeneratorExit
    ... except failure() as error: print(told(error))
    GeneratorExit
    """
    return () if isinstance(sys.exception(), KeyboardInterrupt) else BaseException


def told(error: BaseException) -> str:
    """What a user's function has raised, in words: the text of an exception is user's code too.

    >>> told(KeyError("dest"))
    "KeyError: 'dest'"
    """
    try:
        text = str(error)
    except failure() as second:
        text = f"(its own text cannot be had: {type(second).__name__})"
    name = type(error).__name__
    return f"{name}: {text}" if text else name


def shown(value: object) -> str:
    """A value as messages show it: its `repr` is user's code too, and refuses very long numbers.

    >>> shown("N14228"), shown(1 << 20_000)[:15]
    ("'N14228'", '<int object at ')
    """
    try:
        return repr(value)
    except failure():
        return object.__repr__(value)


class FunctionFailed(MeanderError):
    """A user's function has failed where its operator wants the flow to end with that."""

    def __init__(self, concerns: str, cause: str, remedy: str, trace: str) -> None:
        super().__init__(concerns, cause, remedy)
        self.trace = trace
        """Of what the function raised: shows the user's own lines."""


class Guard:
    """One operator's user functions on one worker: what they fail on, how long they take."""

    def __init__(
        self,
        operator: str,
        policy: OnError,
        dead: DeadLetters,
        counters: Counter[str],
        pulse: Keepalive = NO_KEEPALIVE,
    ) -> None:
        self.operator, self._policy, self._dead = operator, policy, dead
        self.counters, self.pulse = counters, pulse

    def failed(self, batch: Batch, row: int, error: BaseException) -> None:
        """Deal with one record. Raises FunctionFailed under `fail`."""
        if self._policy == "skip":
            self.counters["skipped"] += 1
            return
        reason, trace = told(error), "".join(traceback.format_exception(error))
        if self._policy == "fail":
            where = f"partition {batch.partitions[row]}, offset {batch.offsets[row]}"
            raise FunctionFailed(
                f"operator {self.operator!r}",
                f"its function failed on the record of {where}: {reason}",
                "mend the function, or choose on_error='dead_letter' or 'skip'",
                trace,
            ) from error
        self.counters["dead_letters"] += 1
        self._dead.add(self.operator, batch, row, reason, trace)
