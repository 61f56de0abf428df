"""A simulated flow some of whose workers survive its end with the states in their stores."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from meander.dataflow.runtime.worker import Worker
from meander.state.keys.ids import WorkerId
from meander.state.store.store import Databases
from meander.testing import TestFlow
from tests.support.sim.survivors import draw_survivors

BUDGET = 8 << 20


class Survivors:
    """The workers that survive executions of a flow, drawn at random."""

    def __init__(self, seed: int, folder: str) -> None:
        self.chance, self._folder = random.Random(f"survivors {seed}"), folder
        self.databases = self._new()
        """The databases of the present execution, or of the survivors for the next one."""
        self.bins = 0
        """The bins that survivors had in their stores."""

    def draw(self) -> None:
        """Draw the workers that survive the present execution, and close the other databases."""
        found = {WorkerId(number): one for number, one in self.databases._opened.items()}
        survivors, self.databases = draw_survivors(found, self.chance), self._new()
        for database in {*found.values()} - {*survivors.values()}:
            database.close()
        for database in survivors.values():
            database.end_execution()
        self.databases._opened.update(survivors.items())

    def _new(self) -> Databases:
        return Databases(tempfile.mkdtemp(dir=self._folder), BUDGET)


@contextmanager
def surviving(seed: int) -> Iterator[Survivors]:
    """Yield the survivors of a flow; delete the files of all stores at the end."""
    with tempfile.TemporaryDirectory(prefix="meander-test-") as folder:
        survivors = Survivors(seed, folder)
        try:
            yield survivors
        finally:
            survivors.databases.close()


class SurvivingFlow(TestFlow):
    """A flow whose workers continue with the stores of survivors."""

    __test__ = False

    def __init__(self, *args: Any, survivors: Survivors, **options: Any) -> None:
        self._survivors = survivors
        super().__init__(*args, **options, databases=survivors.databases)

    def _build(self, *surroundings: Any) -> Worker:
        worker = super()._build(*surroundings)
        self._survivors.bins += len(worker._state_restore._survived)
        return worker
