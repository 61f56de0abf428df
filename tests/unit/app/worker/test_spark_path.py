"""A daemon imports Spark's modules from installed packages of the same release, which are compiled,
and else from Spark's archives."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path
from zipfile import ZipFile

import pytest

from meander.app.worker.spark_path import prefer_installed


def archives(folder: Path, spark: str, py4j: str) -> list[str]:
    """Spark's archives of these versions, as Spark puts them on the path."""
    archive = folder / "pyspark.zip"
    with ZipFile(archive, "w") as written:
        written.writestr("pyspark/version.py", f"# Spark\n__version__: str = '{spark}'\n")
    return [str(archive), str(folder / f"py4j-{py4j}-src.zip")]


def test_installed_packages_of_the_same_release_come_first(tmp_path: Path) -> None:
    found = archives(tmp_path, metadata.version("pyspark"), metadata.version("py4j"))
    path = [*found, "some", "more"]
    prefer_installed(path)
    assert path == ["some", "more", *found]


@pytest.mark.parametrize("other", ["pyspark", "py4j"])
def test_archives_of_another_release_stay_where_they_are(tmp_path: Path, other: str) -> None:
    versions = {name: metadata.version(name) for name in ("pyspark", "py4j")} | {other: "0.0.1"}
    path = [*archives(tmp_path, versions["pyspark"], versions["py4j"]), "some", "more"]
    before = [*path]
    prefer_installed(path)
    assert path == before


def test_a_path_without_archives_stays_as_it_is(tmp_path: Path) -> None:
    path = [str(tmp_path / "pyspark.zip"), "some"]
    prefer_installed(path)
    assert path == [str(tmp_path / "pyspark.zip"), "some"]
