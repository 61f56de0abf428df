"""What Spark says of a task that failed, in a sentence that says what to do."""

from __future__ import annotations

import re
import socket
import sys
from pathlib import Path
from zipfile import ZipFile
from zipimport import zipimporter

import pytest

from meander.app.driver import execution
from meander.app.driver.workers import spark_launcher, survivors
from meander.app.driver.workers.spark_launcher import expect_host, expect_master, translate
from meander.app.status import publisher
from meander.app.worker.daemon import drop_archive_importers
from meander.schemas.errors import SetupError

SAID = {
    "[PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.12 than that in driver:"
    " 3.11, PySpark cannot run with different minor versions.": "worker 1's Python: .*3.12 than"
    ".*; set PYSPARK_PYTHON to the same Python on driver and executors",
    "ModuleNotFoundError: No module named 'meander'": "worker 1: Meander is not installed where it",
    'Cannot run program "/no/python": error=2': "worker 1: Cannot run program .*; set PYSPARK_PY",
}


@pytest.mark.parametrize("said", SAID)
def test_what_has_to_be_put_right_is_named(said: str) -> None:
    error = translate("worker 1", f"Job aborted due to stage failure:\\n{said}\\nat org.apache")
    assert isinstance(error, SetupError)
    with pytest.raises(SetupError, match=SAID[said]):
        raise error


AT = "\n\tat org.apache.spark.api.python.PythonRunner.read(PythonRunner.scala:1642)\n"
TRACE = """ Traceback (most recent call last):
    File "app/worker/daemon.py", line 18, in <module>
      import meander.app.worker.main
      ^^^^^^^^^^^^^^^
"""


DAEMON = f"""X: Job aborted: Lost task 0.0: Y:
Error from python worker:
 {TRACE}  ModuleNotFoundError: No module named 'state.ids'; 'state' is not a package
PYTHONPATH was:
  /x.zip
org.apache.spark.X: EOFException occurred.{AT}"""
TASK = f"""X.
: PythonException: An exception was thrown from the Python worker:{TRACE}Oh: it was cancelled.
 SQLSTATE: 38000{AT}"""
CHAIN = f"X:{TRACE}KeyError: 1\n\nThe cause of another:\n\n{TRACE}ValueError:\n  no{AT}"
LIBRARY = f"SparkException: \nError from python worker:\n  python3: error: libpython3.12.so{AT}"
OWN = f"X:{TRACE}OSError: Cannot run program of mine{AT}"
ROOT = f"An error occurred.\n: SparkException: {AT}Caused by: java.IOException: No space{AT}"


@pytest.mark.parametrize(
    ("said", "cause"),
    [
        (DAEMON, "ModuleNotFoundError: No module named 'state.ids'; 'state' is not a package"),
        (TASK, "Oh: it was cancelled"),
        (CHAIN, "ValueError: no"),
        (ROOT, "java.IOException: No space"),
        (f"SparkException:\nNo space left{AT}", "SparkException: No space left"),
        (LIBRARY, "SparkException: Error from python worker: python3: error: libpython3.12.so"),
        (OWN, "OSError: Cannot run program of mine"),
    ],
)
def test_the_cause_is_named_wherever_it_stands_in_a_report(said: str, cause: str) -> None:
    assert str(translate("worker 1", said)) == f"worker 1: {cause}."


@pytest.mark.parametrize(
    "master", ["local", "local[2]", "local[*]", "local[4,2]", "yarn", "k8s://x"]
)
def test_what_may_be_a_master_is_left_to_spark(master: str) -> None:
    expect_master(master)


@pytest.mark.parametrize(
    ("master", "says"),
    [
        ("bogus", "there is no such kind; write local"),
        ("local[x]", "there is no such kind; write local"),
        ("spark://127.0.0.1", "there is no such kind; write local"),
        ("spark://127.0.0.1:1", "it does not answer .*refused.*; start it"),
        ("spark://127.0.0.1:1,127.0.0.1:2", "it does not answer"),
    ],
)
def test_what_is_no_master_is_named_before_spark_tries_for_a_minute(master: str, says: str) -> None:
    with pytest.raises(SetupError, match=rf"Spark master '{re.escape(master)}': {says}"):
        expect_master(master)


def test_one_master_that_answers_is_enough() -> None:
    with socket.create_server(("127.0.0.1", 0)) as master:
        expect_master(f"spark://127.0.0.1:1,127.0.0.1:{master.getsockname()[1]}")


def test_an_address_that_is_not_this_machines_is_named() -> None:
    expect_host("127.0.0.1")
    with pytest.raises(SetupError, match="address '192.0.2.1': this machine has no such address"):
        expect_host("192.0.2.1")


def test_all_that_an_end_may_wait_for_is_less_than_five_seconds() -> None:
    waits = (
        execution.STOP_WITHIN
        + 2 * survivors.EXIT_WITHIN
        + spark_launcher.JVM_END
        + publisher.LAST_EVENT_SECONDS
    )
    assert waits < 5


def test_no_task_has_the_caches_of_archives_renewed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = tmp_path / "some.zip"
    with ZipFile(archive, "w") as written:
        written.writestr("from_an_archive.py", "x = 1")
    monkeypatch.syspath_prepend(archive)
    monkeypatch.setitem(sys.path_importer_cache, str(archive), zipimporter(str(archive)))
    drop_archive_importers()
    assert not any(isinstance(one, zipimporter) for one in sys.path_importer_cache.values())
    assert __import__("from_an_archive").x == 1, "what lies there is found as before"
