"""The file of a plan: YAML that a person writes, as a document.

Guarantees that numbers mean what they say: YAML has numbers as keys, JSON and documents have texts.
"""

from __future__ import annotations

from pathlib import Path

import yaml
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from meander.schemas.errors import SetupError
from meander.schemas.execution_plan import PlanDocument

REMEDY = "start from the output of meander plan show"
SHARES = frozenset({"bins", "bins_of", "partitions"})
"""The sections that give numbers to workers."""


def read_document(file: Path) -> PlanDocument:
    """Read a plan from a YAML file. Raises SetupError where it is none."""
    name = f"file {str(file)!r}"
    try:
        fields = yaml.safe_load(file.read_text())
    except OSError as error:
        raise SetupError(
            name, f"it cannot be read ({error.strerror})", "name the file of a plan"
        ) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise SetupError(name, f"it is no YAML ({' '.join(str(error).split())})", REMEDY) from error
    try:
        return PlanDocument.model_validate(_with_texts(fields))
    except ValidationError as error:
        cause = _cause(error.errors()[0])
        raise SetupError(name, cause, REMEDY) from error


def _with_texts(fields: object) -> object:
    """Return the sections of YAML with texts for numbers of workers, bins and executors.

    >>> _with_texts({"bins": {0: "0-3", 1: 4}, "workers": {0: None, 1: {"executor": 7}}})
    {'bins': {'0': '0-3', '1': '4'}, 'workers': {'0': {}, '1': {'executor': '7'}}}
    >>> _with_texts({"workers": {0: {"cores": 2, "memory": 1073741824}}})
    {'workers': {'0': {'cores': 2, 'memory': '1073741824'}}}
    """
    if not isinstance(fields, dict):
        return fields
    return {str(name): _section(str(name), its) for name, its in fields.items()}


def _section(name: str, value: object) -> object:
    if name in SHARES:
        return _texts(value)
    if name in ("workers", "operators") and isinstance(value, dict):
        read = _resources if name == "workers" else lambda its: its
        return {str(one): {} if its is None else read(its) for one, its in value.items()}
    return value


def _resources(value: object) -> object:
    """Return the resources of a worker with texts for numbers, except that of cores."""
    if not isinstance(value, dict):
        return value
    return {str(key): one if key == "cores" else _texts(one) for key, one in value.items()}


def _texts(value: object) -> object:
    """Return nested mappings with texts for all numbers."""
    if isinstance(value, dict):
        return {str(key): _texts(one) for key, one in value.items()}
    return str(value) if type(value) is int else value


def _cause(error: ErrorDetails) -> str:
    """Return what is wrong with a document, and where."""
    path = [str(one) for one in error["loc"]]
    in_shares = bool(path) and path[0] in SHARES
    match error["type"]:
        case "extra_forbidden" if len(path) == 1:
            wanted = f"is no section: the sections are {', '.join(PlanDocument.model_fields)}"
        case "extra_forbidden":
            wanted = "is no field of a plan"
        case "string_pattern_mismatch" if path[-1] == "[key]":
            wanted = "is not the number of a worker"
        case "string_pattern_mismatch" if path[-1] == "memory":
            wanted = "has to be a size such as 512m or 2g"
        case "model_type" | "dict_type":
            wanted = "has to be a mapping"
        case "string_pattern_mismatch" | "string_type" if in_shares:
            wanted = 'has to be numbers such as 0-127 or, in quotes, "0-127, 200"'
        case _:
            wanted = f"is not valid: {error['msg'][:1].lower()}{error['msg'][1:]}"
    where = ".".join(one for one in path if one != "[key]")
    return f"{where!r} {wanted}" if where else f"it {wanted}"
