"""Java is found, or the sentence says which one is wanted and what to install."""

from __future__ import annotations

from pathlib import Path

import pytest

from meander.connectors.local_broker.java import java
from meander.schemas.errors import SetupError


def a_java(folder: Path, says: str, code: int = 0) -> Path:
    binary = folder / "bin" / "java"
    binary.parent.mkdir()
    binary.write_text(f"#!/bin/sh\necho '{says}' >&2\nexit {code}\n")
    binary.chmod(0o755)
    return binary


@pytest.fixture(autouse=True)
def no_java(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "")


def test_a_missing_java_names_the_package() -> None:
    wanted = "Java: 17 or newer is wanted, and none is installed; install .*openjdk-17-jre-headless"
    with pytest.raises(SetupError, match=wanted):
        java()


def test_an_old_java_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = a_java(tmp_path, 'openjdk version "11.0.22" 2024-01-16')
    monkeypatch.setenv("PATH", str(old.parent))
    with pytest.raises(SetupError, match=f"{old} is version 11; install"):
        java()


def test_java_home_wins_over_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, version in (("home", 21), ("path", 17)):
        (tmp_path / name).mkdir()
        a_java(tmp_path / name, f'openjdk version "{version}.0.1"')
    monkeypatch.setenv("PATH", str(tmp_path / "path" / "bin"))
    assert java() == str(tmp_path / "path" / "bin" / "java")

    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    assert java() == str(tmp_path / "home" / "bin" / "java")


def test_a_java_that_does_not_run_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(
        SetupError, match=f"{tmp_path}/bin/java does not run: .*; correct JAVA_HOME"
    ):
        java()
    a_java(tmp_path, "broken", code=3)
    with pytest.raises(SetupError, match=f"{tmp_path}/bin/java does not run: .*status 3"):
        java()
