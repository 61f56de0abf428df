"""A simulated flow some of whose workers survive its end with the states in their stores."""

from __future__ import annotations

import random
import tempfile
from types import TracebackType
from typing import Any, Self

from meander.dataflow.runtime.worker import Worker
from meander.state.store.store import Database, Databases
from meander.testing import TestFlow

BUDGET = 8 << 20
SURVIVES, SHUFFLED = 0.8, 0.3
"""The probabilities that a worker survives, and that survivors get other numbers."""


class Survivors:
    """The workers that survive executions of a flow, drawn at random.

    Use it as a context manager: it deletes the files of all stores at its end.
    """

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(f"survivors {seed}")
        self._folder = tempfile.TemporaryDirectory(prefix="meander-test-")
        self._databases = dict[int, Database]()
        """By the number of a worker in the next execution."""
        self.bins = 0
        """The bins that survivors had in their stores."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for database in self._databases.values():
            database.close()
        self._folder.cleanup()

    def databases(self) -> Databases:
        """Return the databases of the next execution."""
        found = Databases(tempfile.mkdtemp(dir=self._folder.name), BUDGET)
        found._opened.update(self._databases)
        for database in self._databases.values():
            database.end_execution()
        self._databases.clear()
        return found

    def draw(self, databases: Databases) -> None:
        """Draw the workers that survive an execution with these databases, and close the others."""
        opened = databases._opened
        numbers = [*opened]
        if self.chance.random() < SHUFFLED:
            self.chance.shuffle(numbers)
        for number, former in zip(numbers, [*opened], strict=True):
            if self.chance.random() < SURVIVES:
                self._databases[number] = opened.pop(former)
        databases.close()


class SurvivingFlow(TestFlow):
    """A flow whose workers continue with the stores of survivors."""

    __test__ = False

    def __init__(self, *args: Any, survivors: Survivors, **options: Any) -> None:
        self._survivors = survivors
        super().__init__(*args, **options, databases=survivors.databases())

    def _build(self, *surroundings: Any) -> Worker:
        worker = super()._build(*surroundings)
        self._survivors.bins += len(worker._state_restore._survived)
        return worker

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        super().__exit__(kind, error, trace)
        assert self._databases is not None
        self._survivors.draw(self._databases)
