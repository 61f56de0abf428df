"""What Spark forks workers from on each executor: it has loaded what they all need.

So a worker that joins a running flow takes its share of two busy cores for some tenths of a second,
not for one and a half seconds; and what has been loaded is in memory once. Nothing is opened here;
OpenBLAS and jemalloc, which begin threads as they are loaded, see to these in a fork.
"""

from __future__ import annotations

import gc

from pyspark import daemon

import app.task  # noqa: F401  loaded here, and used in each fork

if __name__ == "__main__":
    gc.freeze()  # else the first collection in each fork would copy all of it
    daemon.manager()
