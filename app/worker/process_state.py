"""The process state of a worker: the loaded flow and the local states survive restarts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

from meander.app.loading.loader import SourceFiles, add_files, load_flow
from meander.dataflow.api.plan import Plan
from meander.dataflow.control.resources import Resources
from meander.dataflow.runtime.worker_memory import WorkerMemory
from meander.state.encoding.named_types import use
from meander.state.store.store import Database


class ProcessState:
    """A state of one process, whose parts open at their first use."""

    def __init__(
        self, source: SourceFiles, sources: Sequence[str], folder: Path, resources: Resources
    ) -> None:
        """`sources` are those of the flow, by number."""
        self._source, self._sources, self._resources = source, sources, resources
        self.folder = folder
        """The folder on disk to which this process writes."""

    @cached_property
    def plan(self) -> Plan:
        """The plan of the flow. Raises SetupError where the flow cannot be loaded."""
        plan = Plan(load_flow(self._source.unpack(self._code)), self._sources)
        use(plan.flow.named_types)
        return plan

    @cached_property
    def memory(self) -> WorkerMemory:
        """The bounds of the worker's memory."""
        return WorkerMemory.of(self.plan, self._resources.memory)

    def add_files(self, files: Mapping[str, bytes]) -> None:
        """Add files to the flow's code."""
        add_files(self._code, files)

    @property
    def _code(self) -> Path:
        return self.folder / "flow"

    @cached_property
    def database(self) -> Database:
        """The database of all local states."""
        return Database(self.folder / "state", self.memory.states, self._resources.cores)

    def end_execution(self) -> None:
        """Note that an execution has ended, so the next one may restore its states."""
        if "database" in self.__dict__:
            self.database.end_execution()

    def close(self) -> None:
        """Release the files."""
        if "database" in self.__dict__:
            self.database.close()
