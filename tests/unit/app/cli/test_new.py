from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from meander.app.cli.main import app
from meander.app.cli.new import requirement
from tests.support.doc_blocks import ROOT


def new(name: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["new", name])
    return result.exit_code, result.output


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def project(folder: Path) -> Path:
    assert new("word-counts")[0] == 0
    return folder / "word-counts"


def ran(project: Path, *command: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=project,
        env=os.environ | {"MYPYPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_test_of_a_new_project_passes(project: Path) -> None:
    assert "1 passed" in ran(project, "pytest", "-q", "-p", "no:cacheprovider")


def test_a_new_project_has_strict_types(project: Path) -> None:
    # A type checker follows no editable install, and the project's own check covers Meander.
    found = ran(project, "mypy", "--strict", "--follow-imports", "silent")
    assert "no issues found in 2 source files" in found


def test_a_new_project_has_what_runs_it(project: Path) -> None:
    settings = tomllib.loads((project / "pyproject.toml").read_text())
    compose = yaml.safe_load((project / "docker-compose.yml").read_text())
    workflow = yaml.safe_load((project / ".github/workflows/test.yml").read_text())
    assert settings["project"]["dependencies"] == [requirement()]
    assert [*compose["services"]] == ["kafka"]
    steps = [step["run"] for step in workflow["jobs"]["test"]["steps"] if "run" in step]
    assert steps == ["pip install --editable '.[dev]'", "mypy", "pytest"]


def test_an_existing_folder_stays_as_it_is(folder: Path) -> None:
    (folder / "counts").mkdir()
    code, _ = new("counts")
    assert code == 2
    assert [*(folder / "counts").iterdir()] == []


@pytest.mark.parametrize("name", ["Counts", "a/b", "../x", "9", "json", "class", "meander", ""])
def test_a_name_that_no_module_can_have_is_refused(folder: Path, name: str) -> None:
    assert new(name)[0] == 2
    assert [*folder.iterdir()] == []
