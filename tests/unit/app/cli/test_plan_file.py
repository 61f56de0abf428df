"""The file of a plan reads as what it says, or an error names the part that is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from meander.app.cli.plan_file import read_document
from meander.schemas.errors import SetupError
from meander.schemas.execution_plan import PlanDocument

PLAN: dict[str, Any] = {
    "workers": {"0": {}, "2": {"host": "a", "executor": "7"}},
    "operators": {"above": {"logic": "rules:Above", "parameters": {"limit": 5, "words": ["no"]}}},
    "bins": {"0": "0-2, 7", "2": "3-6"},
    "bins_of": {"count": {"0": "0-7"}},
    "partitions": {"source": {"0": "0, 2", "2": "1"}},
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "plan.yaml"


def refusal(file: Path) -> str:
    with pytest.raises(SetupError) as refused:
        read_document(file)
    assert f"file {str(file)!r}: " in str(refused.value)
    return str(refused.value)


def test_a_plan_that_was_printed_reads_back(file: Path) -> None:
    file.write_text(yaml.safe_dump(PLAN, sort_keys=False))
    assert read_document(file).sections == PlanDocument.model_validate(PLAN).sections


def test_a_plan_in_json_reads_as_in_yaml(file: Path) -> None:
    document = PlanDocument.model_validate(PLAN)
    file.write_text(document.model_dump_json(exclude_none=True))
    assert read_document(file) == document


READ: dict[str, tuple[str, dict[str, object]]] = {
    "numbers of workers": ("workers: {0: {}, 1: {}}", {"workers": {"0": {}, "1": {}}}),
    "workers without a place": ("workers:\n  0:\n  1:\n", {"workers": {"0": {}, "1": {}}}),
    "the number of an executor": (
        "workers: {0: {executor: 3}}",
        {"workers": {"0": {"executor": "3"}}},
    ),
    "cores and memory": (
        "workers: {0: {cores: 2, memory: 2g}, 1: {memory: 1073741824}}",
        {"workers": {"0": {"cores": 2, "memory": "2g"}, "1": {"memory": "1073741824"}}},
    ),
    "resources that workers share": (
        "workers: {0: &large {cores: 2}, 1: *large}",
        {"workers": {"0": {"cores": 2}, "1": {"cores": 2}}},
    ),
    "a single bin": ("bins: {0: 4, 1: 0-3}", {"bins": {"0": "4", "1": "0-3"}}),
    "several ranges": ("bins:\n  0: 0-2, 7\n", {"bins": {"0": "0-2, 7"}}),
    "no bin": ('bins: {0: ""}', {"bins": {"0": ""}}),
    "a single partition": (
        "partitions: {readings: {0: 1, 1: 0}}",
        {"partitions": {"readings": {"0": "1", "1": "0"}}},
    ),
    "bins of an operator whose name is a number": (
        "bins_of: {7: {0: 0}}",
        {"bins_of": {"7": {"0": "0"}}},
    ),
    "numbers of parameters": (
        "operators: {above: {parameters: {limit: 5}}}",
        {"operators": {"above": {"parameters": {"limit": 5}}}},
    ),
    "an operator that keeps its logic": (
        "operators: {above: }",
        {"operators": {"above": {"parameters": {}}}},
    ),
}


@pytest.mark.parametrize("name", READ)
def test_numbers_in_yaml_say_what_they_mean(name: str, file: Path) -> None:
    text, sections = READ[name]
    file.write_text(text)
    assert read_document(file).sections == sections


WRONG: dict[str, tuple[str, str]] = {
    "an empty file": ("", "it has to be a mapping"),
    "a list": ("[workers]", "it has to be a mapping"),
    "a section with another name": (
        "wokers: {0: {}}",
        "'wokers' is no section: the sections are workers, operators, bins, bins_of, partitions",
    ),
    "a section that is a number": ("workers: 3", "'workers' has to be a mapping"),
    "an unknown field of a worker": (
        "workers: {0: {rack: 2}}",
        "'workers.0.rack' is no field of a plan",
    ),
    "a memory without a unit that exists": (
        "workers: {0: {memory: 2 gigabytes}}",
        "'workers.0.memory' has to be a size such as 512m or 2g",
    ),
    "a worker without cores": (
        "workers: {0: {cores: 0}}",
        "'workers.0.cores' is not valid: input should be greater than or equal to 1",
    ),
    "a parameter outside of the parameters": (
        "operators: {above: {limit: 3}}",
        "'operators.above.limit' is no field of a plan",
    ),
    "a worker with a name": ("workers: {first: {}}", "'workers.first' is not the number of a"),
    "bins of a worker with a name": ("bins: {a: 0-3}", "'bins.a' is not the number of a worker"),
    "a list of bins": ("bins: {0: [0, 1]}", "'bins.0' has to be numbers such as 0-127 or, in q"),
    "ranges without quotes in braces": (
        "bins: {0: 0-2, 7}",
        "'bins.7' has to be numbers such as 0-127 or, in quotes, \"0-127, 200\"",
    ),
    "bins that are no numbers": ("bins: {0: all}", "'bins.0' has to be numbers"),
    "a parameter that JSON does not have": (
        "operators: {above: {parameters: {day: 2026-01-01}}}",
        "'operators.above.parameters.day' is not valid: input was not a valid JSON value",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_file_that_is_no_plan_is_refused_by_the_part_that_is_wrong(name: str, file: Path) -> None:
    text, cause = WRONG[name]
    file.write_text(text)
    said = refusal(file)
    assert cause in said
    assert "start from the output of meander plan show" in said


def test_a_file_that_is_no_yaml_is_refused_by_its_line(file: Path) -> None:
    file.write_text("workers: [")
    assert "it is no YAML (" in refusal(file)
    assert "line 1, column 11" in refusal(file)
    file.write_bytes(b"\xff\xfe\x00")
    assert "it is no YAML (" in refusal(file)


def test_a_file_that_cannot_be_read_is_refused(file: Path, tmp_path: Path) -> None:
    assert "it cannot be read (No such file or directory)" in refusal(file)
    assert "it cannot be read (Is a directory)" in refusal(tmp_path)
