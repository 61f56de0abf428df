"""Folders that Meander creates on a machine.

Guarantees a sentence in place of a traceback where this user has no home, or may not write there. A
container that runs under a bare user number is an example.
"""

from __future__ import annotations

import os
from pathlib import Path

from meander.schemas.errors import SetupError


def home() -> Path:
    """Return this user's home; the root where there is none."""
    try:
        return Path.home()
    except RuntimeError:
        return Path("/")


def make_folder(folder: Path, alternative: str) -> None:
    """Create a folder, unless it exists. Raise SetupError where it cannot be created or written to;
    `alternative` names a way to choose another folder.

    >>> make_folder(Path("/proc/mine"), "name another with --data")
    Traceback (most recent call last):
    meander.schemas.errors.SetupError: folder /proc/mine: it cannot be created (...); set ...
    """
    cause = "this user may not write to it"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        cause = f"it cannot be created ({error.strerror})"
    else:
        if os.access(folder, os.W_OK):
            return
    remedy = f"set HOME to a folder that this user may write to, or {alternative}"
    raise SetupError(f"folder {folder}", cause, remedy)
