"""The code of a flow: the files that its workers have, and those that a user has added since.

Guarantees that a file never changes under a running flow: a new version of a logic comes in a new
file. Guarantees that workers that start later get all files. Cost: one look at the folder per
command that changes logic.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from meander.app.loading.loader import SourceFiles, beside, collect, load_flow
from meander.dataflow.api.flow import Flow
from meander.schemas.errors import SetupError

MAX_ADDED = 4 << 20
"""The limit of bytes of files that running workers get."""


class FlowCode:
    """The code of a flow at the driver."""

    def __init__(self, module: Path) -> None:
        """Collect the files beside a module. Raises SetupError where it is missing or too large."""
        self._module = module
        self.source = collect(module)
        """The files that workers get at their launch."""
        self.added: dict[str, bytes] = {}
        """The files that a user has added since the driver started."""

    @property
    def number(self) -> int:
        """The number of added files."""
        return len(self.added)

    def add_beside(self, files: Iterable[Path]) -> None:
        """Add files that a format of the flow needs. Raises SetupError where one lies elsewhere
        than beside the module."""
        more = beside(self._module, files)
        self.source = SourceFiles(self.source.entry, self.source.files | more)

    def add_new_files(self) -> None:
        """Add the files that a user has put beside the module. Raises SetupError where they are
        too large."""
        found = collect(self._module).files
        new = {name: found[name] for name in found.keys() - self.source.files.keys()}
        size = sum(map(len, (self.added | new).values()))
        if size > MAX_ADDED:
            raise SetupError(
                f"flow module {self._module}",
                f"the files that came since its start are more than {MAX_ADDED >> 20} MiB",
                "restart the flow, or keep them in another folder",
            )
        if new:
            self.added |= new
            self.source = SourceFiles(self.source.entry, self.source.files | new)


@dataclass(frozen=True, slots=True)
class LoadedFlow:
    """A flow of a module, and the code from which it was loaded."""

    code: FlowCode
    flow: Flow


def load(module: Path) -> LoadedFlow:
    """Collect the code of a module, then load its flow. Raises SetupError where that fails."""
    code = FlowCode(module)
    return LoadedFlow(code, load_flow(module))
