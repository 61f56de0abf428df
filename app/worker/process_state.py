"""What a worker's process keeps from one life of its flow to the next: the flow that it has loaded,
and the local states."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

from meander.app.flow.loader import Source, load_flow
from meander.dataflow.api.plan import Plan
from meander.state.store.store import Database


class ProcessState:
    """Of one process, each opened when it is first asked for."""

    def __init__(self, source: Source, folder: Path) -> None:
        self._source, self.folder = source, folder
        """Where this process writes, on its disk."""

    @cached_property
    def plan(self) -> Plan:
        """The flow. Raises SetupError where it cannot be loaded."""
        return Plan(load_flow(self._source.unpack(self.folder / "flow")))

    @cached_property
    def database(self) -> Database:
        """The states."""
        return Database(self.folder / "state", self.plan.flow.state_memory)

    def outlive(self) -> None:
        """A life is over."""
        if "database" in self.__dict__:
            self.database.outlive()

    def close(self) -> None:
        """Release the files."""
        if "database" in self.__dict__:
            self.database.close()
