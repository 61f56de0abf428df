"""`meander run` in a process that kills itself as soon as a rescale reaches a state."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from meander.app.cli import main as cli
from meander.state.keys.ids import WorkerId
from tests.support.process.flow_process import FlowProcess, kill, meander
from tests.support.process.rescale_states import RescaleStates

ROOT = Path(__file__).parents[3]


@contextmanager
def dying_driver(
    folder: Path, bootstrap: str, id: str, state: str, *words: str
) -> Iterator[FlowProcess]:
    """The command with these words, which dies in a state of a rescale whose id begins so."""
    program = sys.executable, "-m", __name__, id, state
    with meander(folder, bootstrap, *words, program=program, PYTHONPATH=str(ROOT)) as flow:
        yield flow


def run(id: str, state: str, *words: str) -> None:
    """Run the command; die in a state."""

    def show(shown: str, _: WorkerId | None) -> None:
        assert states.change is not None
        if shown == state and states.change.id.startswith(id):
            kill(os.getpid())

    states = RescaleStates(show)
    states.observe(setattr)
    sys.argv[1:] = words
    cli.main()


if __name__ == "__main__":
    run(*sys.argv[1:])
