"""One broker for the whole run, a topic prefix for each test, marks by folder.

With `-n` a run has several processes; the one that conducts them starts the broker for all, and
each suite is spread over the run (`suites.spread`).
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import astuple
from pathlib import Path
from uuid import uuid4

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession
from xdist.workermanage import WorkerController

from meander.app.driver.workers import spark_launcher
from meander.connectors.local_broker import broker as local_broker
from meander.connectors.local_broker.broker import LocalBroker
from meander.state.store.store import Database, Store
from tests.support.kafka.brokers import Broker, choice, running
from tests.support.kafka.topics import delete_topics
from tests.support.process.jvm_archive import Archive, archived
from tests.support.property.budget import FIRST_SEED, PARTS, SCHEDULES
from tests.support.suites import spread, suite_of

_MEMORY, _ROOM = Path("/dev/shm"), 6 << 30
"""The folder of temporary files, and the free bytes that it needs. A database opens in 8 ms there,
and in 50 on a disk."""
_used = pytest.StashKey[str]()
_shared = pytest.StashKey[Broker]()
_classes = pytest.StashKey[Archive]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--bootstrap", help="take this broker (also: MEANDER_BOOTSTRAP)")


def pytest_configure(config: pytest.Config) -> None:
    there = "TMPDIR" not in os.environ and _MEMORY.is_dir()
    if there and shutil.disk_usage(_MEMORY).free >= _ROOM:
        folder = tempfile.mkdtemp(prefix="meander-tests-", dir=_MEMORY)
        os.environ["TMPDIR"] = os.environ["SPARK_LOCAL_DIRS"] = tempfile.tempdir = folder
        # Processes that tests kill leave files behind.
        config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
    # The brokers of tests are killed soon: what the second compiler does would take half of the CPU
    # that they use.
    local_broker.FLAGS.append("-XX:TieredStopAtLevel=1")


def pytest_report_header(config: pytest.Config) -> str:
    return f"broker: {choice(config.getoption('bootstrap'))}, if a test asks for one"


def pytest_xdist_setupnodes(config: pytest.Config) -> None:
    if PARTS > 1:  # the random suites ask for no broker
        return
    opened = ExitStack()
    config.add_cleanup(opened.close)
    config.stash[_classes] = opened.enter_context(archived())
    config.stash[_shared] = opened.enter_context(running(config.getoption("bootstrap")))
    config.stash[_used] = _named(config.stash[_shared])


def pytest_configure_node(node: WorkerController) -> None:
    if _shared in node.config.stash:
        node.workerinput["broker"] = astuple(node.config.stash[_shared])


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    used = config.stash.get(_used, "none was asked for")
    terminalreporter.write_line(f"broker: {used}")
    if _classes in config.stash:
        terminalreporter.write_line(f"classes of Spark's JVMs: {config.stash[_classes]}")
    # A suite may have run in several processes.
    tried: Counter[str] = Counter()
    for report in terminalreporter.getreports("passed"):
        for what, count in report.user_properties:
            tried[what] += count
    for what, count in tried.items():
        seed = f", seed {FIRST_SEED}" if what.startswith(SCHEDULES) else ""
        terminalreporter.write_line(f"{what}: {count:,}{seed}")
    schedules = sum(count for what, count in tried.items() if what.startswith(SCHEDULES))
    if schedules:
        total = f"{SCHEDULES}all suites: {schedules:,}, seed {FIRST_SEED}"
        terminalreporter.write_line(f"{total}, in {PARTS} processes" if PARTS > 1 else total)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        item.add_marker(suite_of(item.path))
    if hasattr(config, "workerinput"):
        places = {path: place for place, path in enumerate(spread({one.path for one in items}))}
        items.sort(key=lambda item: places[item.path])


@pytest.fixture(scope="session")
def broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    """The run's broker; it is shared, so nobody kills it (see `own_broker`)."""
    shared = getattr(request.config, "workerinput", {}).get("broker")
    if shared is not None:
        yield Broker(*shared)
        return
    with running(request.config.getoption("bootstrap")) as taken:
        request.config.stash[_used] = _named(taken)
        yield taken


def _named(broker: Broker) -> str:
    return f"{broker.kind} at {broker.bootstrap}"


@pytest.fixture
def bootstrap(broker: Broker) -> str:
    return broker.bootstrap


@pytest.fixture
def prefix(request: pytest.FixtureRequest) -> Iterator[str]:
    """Begins the name of every topic, group and flow of one test; the topics go with the test, as a
    broker with thousands of them is busy with those alone."""
    begins = f"t{uuid4().hex[:10]}."
    used = [name for name in ("broker", "own_broker") if name in request.fixturenames]
    brokers: list[Broker | LocalBroker] = [*map(request.getfixturevalue, used)]
    yield begins
    for broker in brokers:
        if isinstance(broker, Broker) or broker.pid is not None:
            delete_topics(broker.bootstrap, begins)


@pytest.fixture(scope="session")
def kept_broker() -> Iterator[LocalBroker]:
    """What `own_broker` is: a start costs some seconds."""
    with LocalBroker() as local:
        yield local


@pytest.fixture
def own_broker(kept_broker: LocalBroker) -> LocalBroker:
    """A local broker that the test may stop, kill and start again; it runs as the test begins."""
    kept_broker.start()
    return kept_broker


@pytest.fixture(scope="session")
def context() -> Iterator[SparkContext]:
    """Spark in this process: six slots for flows, for reading and for oracles."""
    with spark_launcher.spark_context("local[6]", "tests") as context:
        yield context


@pytest.fixture(scope="session")
def spark(context: SparkContext) -> SparkSession:
    """The same for SQL."""
    return SparkSession(context)


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Database, Database]]:
    """Two workers' databases; each test has operators of its own in them."""
    databases = [Database(tmp_path_factory.mktemp("worker"), budget_bytes=1 << 20) for _ in "ab"]
    yield databases[0], databases[1]
    for database in databases:
        database.close()


@pytest.fixture
def old(workers: tuple[Database, Database], request: pytest.FixtureRequest) -> Store:
    """Where a bin's state leaves."""
    return workers[0].store(request.node.name)


@pytest.fixture
def new(workers: tuple[Database, Database], request: pytest.FixtureRequest) -> Store:
    """Where it arrives."""
    return workers[1].store(request.node.name)
