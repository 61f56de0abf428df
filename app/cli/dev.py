"""`meander dev`: run a flow while it is written, and show its results in the terminal.

Guarantees that the flow starts again each time a file of its folder is saved, and that everything
ends with this command: the flow's process by a pipe that closes, and the local broker where this
command has started it. Nothing is written to Kafka, so the flow may run beside a real one.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from meander.app.cli.broker import fetch
from meander.app.cli.options import Connection, FlowModule, connected
from meander.app.common.output import CommandOutput
from meander.app.config.settings import BOOTSTRAP
from meander.app.in_process.development import Development
from meander.app.loading.loader import collect
from meander.connectors.local_broker.broker import broker_stop, is_free
from meander.connectors.local_broker.default import DATA, PORT, start_local
from meander.schemas.errors import MeanderError

EXAMPLE = "Example: meander dev counts.py"
commands = typer.Typer()
LOOK_INTERVAL = 0.3
"""The seconds from one look at the files to the next."""
END_TIMEOUT = 5.0
"""The seconds that the flow's process has for its end."""


@commands.command(epilog=EXAMPLE)
@connected
def dev(
    module: FlowModule,
    start: Annotated[
        str,
        typer.Option(help="Where sources start: earliest, latest, milliseconds since 1970, or a"
                     " time with a zone in ISO 8601."),
    ] = "earliest",
    *,
    to: Connection,
) -> None:  # fmt: skip
    """Run a flow here, print its results, and start it again whenever its code is saved.

    Results go to the terminal alone, and nothing is written to Kafka. Without a broker a local one
    runs meanwhile, and has the topics that the flow reads. Ctrl-C ends all.
    """
    output = to.output
    files = _files(module)
    with _kafka(to) as (kafka, is_local):
        while True:
            with _Process(Development(str(module.absolute()), kafka, start, is_local), output):
                files = _changed(module, files)
            output.say(f"{module.name} has changed")


@contextlib.contextmanager
def _kafka(to: Connection) -> Iterator[tuple[dict[str, str], bool]]:
    """Yield the settings of Kafka, and whether the broker is the local one, which runs while the
    block lasts."""
    settings = to.settings()
    origin = settings.values[BOOTSTRAP].origin
    if origin != "default" or not is_free(PORT):
        yield to.kafka(), origin == "local broker"
        return
    fetch(to.output)
    with to.output.working("starting Kafka"):
        bootstrap = start_local(DATA)
    to.output.say(f"Kafka answers at {bootstrap}")
    try:
        yield settings.kafka() | {BOOTSTRAP: bootstrap}, True
    finally:
        broker_stop(DATA)


def _changed(module: Path, files: dict[str, bytes]) -> dict[str, bytes]:
    """Wait until the files that the flow may import change; return them."""
    while (now := _files(module)) == files or not now:
        time.sleep(LOOK_INTERVAL)
    return now


def _files(module: Path) -> dict[str, bytes]:
    """Return the files that the flow may import; none while an editor replaces them."""
    try:
        return collect(module).files
    except (MeanderError, FileNotFoundError):
        return {}


class _Process:
    """The process of a flow; a context manager that ends it."""

    def __init__(self, development: Development, output: CommandOutput) -> None:
        self._development, self._output = development, output

    def __enter__(self) -> None:
        command = [sys.executable, "-m", "meander.app.in_process.development"]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            start_new_session=True,
        )  # fmt: skip
        assert self._process.stdin is not None
        self._process.stdin.write(self._development.to_line())
        self._process.stdin.flush()
        self._reader = threading.Thread(target=self._show, name="results", daemon=True)
        self._reader.start()

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(END_TIMEOUT)
        except subprocess.TimeoutExpired:
            # A function of the user does not return.
            self._process.kill()
            self._process.wait()
        self._reader.join()

    def _show(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            fields = json.loads(line)
            if self._output.as_json:
                self._output.line(fields)
            else:
                self._output.say(_in_words(fields))


def _in_words(fields: dict[str, object]) -> str:
    """Return a line about what the flow has done.

    >>> _in_words({"type": "result", "sink": "counts", "key": "to", "value": {"count": 1}})
    "counts  to  {'count': 1}"
    """
    match fields:
        case {"type": "result", "sink": sink, "key": None, "value": value}:
            return f"{sink}  {value}"
        case {"type": "result", "sink": sink, "key": key, "value": value}:
            return f"{sink}  {key}  {value}"
        case {"type": "dead_letter", "operator": operator, "value": value, "reason": reason}:
            return f"dead letter of {operator}: {reason}: {value}"
        case {"type": "failed", "reason": reason}:
            return f"{reason}"
    return f"{fields['flow']} runs"
