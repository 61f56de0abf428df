"""The file with settings, `meander.toml`.

Guarantees that a malformed file is a SetupError of one sentence without a secret. Cost: one read
of a small file.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from meander.schemas.errors import SetupError

FILE = Path("meander.toml")
"""The file in the working directory that is read where no other is named."""


class SettingsFile(BaseModel):
    """A content of the file; tables below `kafka` join their names by dots."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    bootstrap: str | None = None
    kafka: dict[str, object] = {}
    flow: dict[str, object] = {}
    """Settings of all flows, and a table for each flow with settings of its own."""


def read_settings(file: Path | None) -> tuple[Path, SettingsFile] | None:
    """Read a file (`FILE` where None is named) into its path and content; None where `FILE` does
    not exist. Raises SetupError for a missing or malformed file."""
    path = file or FILE
    if file is None and not path.exists():
        return None
    subject = f"file {path}"
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise SetupError(subject, f"it cannot be read ({reason})", "correct --config") from error
    try:
        return path, SettingsFile.model_validate(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        # The parser's message names a place and at most one character.
        raise SetupError(subject, f"it is not TOML ({error})") from error
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        name = ".".join(map(str, first["loc"]))
        unknown = first["type"] == "extra_forbidden"
        cause = f"'{name}' is not known here" if unknown else f"'{name}': {first['msg'].lower()}"
        remedy = (
            "it may hold 'bootstrap', the table [kafka] with librdkafka's settings, and the tables"
            " [flow] and [flow.NAME] with those of flows"
        )
        raise SetupError(subject, cause, remedy) from error
