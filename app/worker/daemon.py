"""The daemon from which Spark forks workers on each executor. It has loaded their modules.

A new worker therefore uses a busy core for tens of milliseconds instead of one and a half seconds,
and the modules are in memory once. Invariant: nothing is opened here. OpenBLAS and jemalloc start
threads as they load, and handle forks themselves.
"""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path
from zipimport import zipimporter

from meander.app.worker.spark_path import prefer_installed

prefer_installed(sys.path)

import pyspark.worker  # noqa: E402, F401  else each fork loads it
from pyspark import daemon  # noqa: E402

import meander.app.worker.main  # noqa: E402, F401  loaded here, and used in each fork
from meander.app.protocol.registration import versions  # noqa: E402


def drop_archive_importers() -> None:
    """Drop the importers of Spark's archives, whose caches Spark would refresh before each task.

    That takes 120 ms. The next import that needs an archive restores its importer.
    """
    for path, finder in list(sys.path_importer_cache.items()):
        if isinstance(finder, zipimporter):
            del sys.path_importer_cache[path]


def import_from_working_folder() -> None:
    """Import modules from the working folder too, behind all others.

    Spark keeps that folder off the path, so its files do not hide Meander's (`spark_launcher`).
    """
    os.environ.pop("PYTHONSAFEPATH", None)  # not for programs that a user's function may run
    sys.path.append(str(Path.cwd()))


if __name__ == "__main__":
    import_from_working_folder()
    drop_archive_importers()
    versions()  # cached for all forks, which send them
    gc.freeze()  # else the first collection in each fork would copy all pages
    daemon.manager()
