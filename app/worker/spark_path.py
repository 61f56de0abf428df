"""Where a daemon imports Spark's own modules from: the installed packages, or Spark's archives.

Guarantees that the modules are of the release that Spark's archives hold. An archive has source
alone, so each start of a daemon would compile it for 0.6 s of processor time; an installed package
is compiled once. Cost: a look into one archive.
"""

from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path
from zipfile import ZipFile

_SPARK, _PY4J = "pyspark.zip", re.compile(r"py4j-(.+)-src\.zip")
_VERSION = re.compile(rb"__version__.*?['\"](.+)['\"]")


def prefer_installed(path: list[str]) -> None:
    """Move Spark's archives on a path behind all else, where packages of their release are
    installed.

    >>> path = ["/spark/py4j-0.0.1-src.zip", "/site-packages"]
    >>> prefer_installed(path)
    >>> path
    ['/spark/py4j-0.0.1-src.zip', '/site-packages']
    """
    archives = {one: release for one in path if (release := _release(Path(one))) is not None}
    if archives and all(_installed(*release) for release in archives.values()):
        path[:] = [*(one for one in path if one not in archives), *archives]


def _release(archive: Path) -> tuple[str, str] | None:
    """Return the package of an archive and its version; None for another entry of a path."""
    if found := _PY4J.fullmatch(archive.name):
        return "py4j", found[1]
    if archive.name != _SPARK or not archive.is_file():
        return None
    with ZipFile(archive) as opened:
        version = _VERSION.search(opened.read("pyspark/version.py"))
    return "pyspark", version[1].decode() if version else ""


def _installed(package: str, version: str) -> bool:
    try:
        return metadata.version(package) == version
    except metadata.PackageNotFoundError:
        return False
