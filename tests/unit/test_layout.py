"""Tests share code through `tests/support` alone, and their folders mirror packages. Each public
class of the product has a name of its own."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.retired_words import product

ROOT = Path(__file__).parents[2]
MIRRORS = "unit", "integration"
"""Suites whose folders have the names of packages."""


def foreign_imports(source: str) -> Iterator[str]:
    """Yield the modules of `tests` outside of `tests.support` that a source imports."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names):
                modules = [alias.name for alias in names]
            case ast.ImportFrom("tests", names):
                modules = [f"tests.{alias.name}" for alias in names]
            case ast.ImportFrom(str(module)):
                modules = [module]
            case _:
                continue
        for module in modules:
            if module.split(".")[0] == "tests" and module.split(".")[1:2] != ["support"]:
                yield module


def strays(suite: Path, root: Path) -> Iterator[str]:
    """Yield the folders of a suite that mirror no package under `root`."""
    for folder in sorted(path for path in suite.rglob("*") if path.is_dir()):
        name = folder.relative_to(suite)
        if "__pycache__" in name.parts:
            continue
        package = root / name / "__init__.py", root / "tests" / name
        if not package[0].is_file() and not (name.parts[0] == "support" and package[1].is_dir()):
            yield str(name)


def test_no_module_imports_another_test_module() -> None:
    found = {
        str(path.relative_to(ROOT)): modules
        for path in sorted((ROOT / "tests").rglob("*.py"))
        if (modules := [*foreign_imports(path.read_text())])
    }
    assert not found, "shared code belongs into tests/support"


@pytest.mark.parametrize(
    ("line", "modules"),
    [
        ("from tests.unit.state.test_store import put", ["tests.unit.state.test_store"]),
        ("    from tests.unit.conftest import start", ["tests.unit.conftest"]),
        ("import tests.property.test_loops as loops", ["tests.property.test_loops"]),
        ("from tests import unit", ["tests.unit"]),
        ("from tests import support", []),
        ("from tests.support.sim.start import Start", []),
        ("import testsuite", []),
    ],
)
def test_an_import_of_a_test_module_is_found(line: str, modules: list[str]) -> None:
    assert [*foreign_imports(f"def f():\n    {line.strip()}")] == modules


@pytest.mark.parametrize("suite", MIRRORS)
def test_the_folders_of_a_suite_mirror_packages(suite: str) -> None:
    assert not [*strays(ROOT / "tests" / suite, ROOT)]


def test_a_folder_without_a_package_is_found(tmp_path: Path) -> None:
    for folder in ("state/keys", "tests/support/sim", "tests/unit/support/sim"):
        (tmp_path / folder).mkdir(parents=True)
    for folder in ("state/keys", "state/values", "support"):
        (tmp_path / "tests/unit" / folder).mkdir(parents=True, exist_ok=True)
    for package in ("state", "state/keys"):
        (tmp_path / package / "__init__.py").touch()
    assert [*strays(tmp_path / "tests/unit", tmp_path)] == ["state/values"]


def test_no_two_public_classes_have_one_name() -> None:
    names = Counter(
        node.name
        for file, source in product()
        if file.endswith(".py")
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert [name for name, count in names.items() if count > 1] == []
