"""`meander new`: a folder with a flow, its test, and what runs both.

Guarantees that no file of an existing folder changes, and that the test and a strict type check of
the new folder pass as it is.
"""

from __future__ import annotations

import json
import keyword
import re
import sys
from importlib import metadata
from pathlib import Path
from string import Template
from typing import Annotated

import typer

from meander.app.cli.options import Json
from meander.app.cli.project_files import FILES
from meander.app.common.output import CommandOutput
from meander.schemas.errors import SetupError

EXAMPLE = "Example: meander new word-counts"
commands = typer.Typer()
_NAME = re.compile(r"[a-z][a-z0-9]*(?:[-_][a-z0-9]+)*")


@commands.command(epilog=EXAMPLE)
def new(
    name: Annotated[str, typer.Argument(help="The folder's and the flow's name.")],
    as_json: Json = False,
) -> None:
    """Make a folder with a flow, its test, Kafka by Compose, and a workflow for CI."""
    module = _module(name)
    folder = Path(name)
    if folder.exists():
        raise SetupError(f"folder {name!r}", "it exists", "choose another name")
    values = {"name": name, "module": module, "requirement": requirement()}
    for path, text in FILES.items():
        file = folder / Template(path).substitute(values)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(Template(text).substitute(values))
    output = CommandOutput.of(as_json)
    if output.as_json:
        output.line({"folder": name, "flow": f"{module}.py"})
    output.say(f"{name}/ holds {module}.py and its test. Test it with: cd {name} && pytest")


def _module(name: str) -> str:
    """Return the name of the module. Raise SetupError where no module can have it."""
    module = name.replace("-", "_")
    if not _NAME.fullmatch(name):
        raise SetupError(f"project {name!r}", "its name is none of a folder and a flow",
                         "take small letters, digits and hyphens behind a letter, such as"
                         " word-counts")  # fmt: skip
    if keyword.iskeyword(module) or module in sys.stdlib_module_names or module == "meander":
        raise SetupError(f"project {name!r}", f"Python has a module or a word {module!r}",
                         "choose another name")  # fmt: skip
    return module


def requirement() -> str:
    """Return the requirement by which pip gets this installation: its address, or its version."""
    installed = metadata.distribution("meander")
    origin = json.loads(installed.read_text("direct_url.json") or "{}")
    if "url" not in origin:
        return f"meander=={installed.version}"
    source = origin.get("vcs_info")
    if source is None:
        return f"meander @ {origin['url']}"
    return f"meander @ {source['vcs']}+{origin['url']}@{source['commit_id']}"
