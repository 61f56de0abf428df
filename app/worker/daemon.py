"""What Spark forks workers from on each executor: it has loaded what they all need.

So a worker that joins a running flow, or goes on for a lost one, takes its share of two busy cores
for some tens of milliseconds, not for one and a half seconds; and what has been loaded is in memory
once. Nothing is opened here; OpenBLAS and jemalloc, which begin threads as they are loaded, see to
these in a fork.
"""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path
from zipimport import zipimporter

import pyspark.worker  # noqa: F401  compiled anew by each fork otherwise: Spark's archive has source
from pyspark import daemon

import meander.app.worker.main  # noqa: F401  loaded here, and used in each fork
from meander.app.protocol.registration import versions


def let_go_of_archives() -> None:
    """Before each task Spark has the caches of all importers renewed, and those of its own archives
    take 120 ms for that. They come back with the next import that needs them."""
    for path, finder in list(sys.path_importer_cache.items()):
        if isinstance(finder, zipimporter):
            del sys.path_importer_cache[path]


def find_the_users() -> None:
    """Look for modules in the folder of the driver, too, where that is here; but behind all else:
    Spark keeps it off the path, so that its files are not taken for Meander's (`spark_launcher`).
    """
    os.environ.pop("PYTHONSAFEPATH", None)  # of no concern to what a user's function may run
    sys.path.append(str(Path.cwd()))


if __name__ == "__main__":
    find_the_users()
    let_go_of_archives()
    versions()  # which each fork tells, and knows from here
    gc.freeze()  # else the first collection in each fork would copy all of it
    daemon.manager()
