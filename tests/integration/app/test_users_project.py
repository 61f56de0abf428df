"""A user's project with packages of its own: `app`, `state`, `schemas` and `connectors`.

Folders of Meander have the same names. The project runs with the checkout that these tests use, and
with the wheel in an environment that has nothing of the checkout.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from collections import Counter
from pathlib import Path

import pytest

from tests.support.kafka.brokers import Broker
from tests.support.kafka.topics import PATIENCE, consume_all
from tests.support.process.flow_process import lines
from tests.support.process.spark_cluster import cluster
from tests.support.process.word_counts import each_once

ROOT = Path(__file__).parents[3]
PROJECT = {
    "app/__init__.py": "",
    "app/words.py": """
def clean(word: str) -> str:
    return word.strip(".,").lower()
""",
    "state/__init__.py": "START = 0\n",
    "schemas.py": "SHORTEST = 2\n",
    "connectors.py": """
PREFIX = ""

def topic(name: str) -> str:
    return PREFIX + name
""",
    "flow.py": """
import connectors
import schemas
import state
from app.words import clean
from meander import Context, Flow, KafkaSink, KafkaSource

def count(number: int, word: str) -> tuple[int, str]:
    return number + 1, f"{word} {number + 1}"

flow = Flow("counts", bins=4)
lines = flow.source(KafkaSource[str](connectors.topic("lines"), value="str"))
words = lines.flat_map(str.split).map(clean).filter(lambda word: len(word) >= schemas.SHORTEST)
counts = words.key_by(lambda word: word).fold("count", lambda: state.START, count)
counts.sink(KafkaSink(connectors.topic("counts"), "str"))

def remind(context: Context[str], seen: int, word: str) -> int:
    context.cancel("long ago")
    context.timer(context.time_ms + 1000, name="reminder")
    return seen + len(context.key)

def told(context: Context[str], seen: int) -> int:
    name: str | None = context.timer_name
    context.emit(f"{name} {context.key.upper()}")
    return seen

reminders = words.key_by(lambda word: word).process("reminders", int, remind, told)
""",
    "sources.py": """
from typing import NamedTuple

from meander import Flow, KafkaSource, Record, Stream, typed

class Order(NamedTuple):
    id: int

flow = Flow("sources")
order = typed(Order)
plain: Stream[Order] = flow.source(KafkaSource("plain", order))
pairs: Stream[tuple[str, Order]] = flow.source(
    KafkaSource("pairs", order, bytes.decode, pairs=True), "pairs")
records: Stream[Record[Order]] = flow.source(KafkaSource("r", order, metadata=True), "records")
said: Stream[tuple[str, int]] = flow.source(
    KafkaSource[tuple[str, int]]("said", pairs=True), "said")
noted: Stream[Record[int]] = flow.source(KafkaSource[Record[int]]("noted", metadata=True), "noted")
ids = flow.merge(pairs.map(lambda pair: pair[1].id), records.map(lambda record: record.value.id))
""",
    "test_flow.py": """
from flow import flow
from meander.testing import TestFlow

def test_words_are_counted() -> None:
    with TestFlow(flow, workers=2) as run:
        run.feed("lines", "To be, or not to be.")
        run.run()
    assert sorted(run.values("counts")) == ["be 1", "be 2", "not 1", "or 1", "to 1", "to 2"]
""",
}
WRONG = """
def length(number: int, word: bytes) -> tuple[int, int]:
    return number + 1, len(word)

words.key_by(lambda word: word).fold("length", int, length)
"""
WRONG_CALLS = """
def by_number(context: Context[int], seen: int, word: str) -> int:
    return seen + context.key

words.key_by(lambda word: word).process("numbers", int, by_number)

def untimely(context: Context[str], seen: int) -> int:
    context.timer("tomorrow")
    context.cancel(7)
    context.alarm(60, nam="late")
    return seen + context.key
"""
WRONG_SOURCES = """
wrong: Stream[Order] = flow.source(KafkaSource("wrong", order, metadata=True))
pairs.map(lambda pair: pair.id)
records.map(lambda record: record.id)
"""
SOURCE_ERRORS = (
    'Argument 1 to "source"', '"tuple[str, Order]" has no attribute "id"',
    'Record[Order]" has no attribute "id"',
)  # fmt: skip
CALL_ERRORS = (
    'Argument 3 to "process"', 'Argument 1 to "timer"', 'Argument 1 to "cancel"',
    'Unexpected keyword argument "nam"', "Unsupported operand types",
)  # fmt: skip
TEXTS = ["To be, or not to be.", "To sleep, a dream"] * 20
WANTED = Counter({"to": 60, "be": 40, "or": 20, "not": 20, "sleep": 20, "dream": 20})


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    for name, text in PROJECT.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Python of an environment that has the wheel, and of ours what the wheel depends on."""
    folder = tmp_path_factory.mktemp("wheel")
    not_ours = shutil.ignore_patterns(".git", ".venv", "build", "*.egg-info", "__pycache__")
    shutil.copytree(ROOT, folder / "source", symlinks=True, ignore=not_ours)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    building = "wheel", "--no-build-isolation", "--no-deps", "--wheel-dir", folder
    subprocess.run([*pip, *building, folder / "source"], check=True)
    shutil.rmtree(folder / "source")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
    python = folder / "venv" / "bin" / "python"
    (built,) = folder.glob("*.whl")
    subprocess.run([*pip, "--python", python, "install", "--no-deps", built], check=True)
    # A path that a .pth file names is searched; the .pth file of the checkout in it is not read.
    (sites,) = (folder / "venv").glob("lib/python*/site-packages")
    (sites / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    return python


def said(command: list[str | Path], folder: Path) -> str:
    done = subprocess.run(
        command, cwd=folder, timeout=PATIENCE, check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    return done.stdout


def check_run(python: Path, project: Path, broker: Broker, prefix: str, master: str) -> None:
    lines(broker.bootstrap, prefix, TEXTS)
    command: list[str | Path] = [
        python.with_name("meander"), "run", "flow.py", "--master", master, "--workers", "2",
        "--until-end", "--prefix", prefix, "--bootstrap", broker.bootstrap,
    ]  # fmt: skip
    # An executor of a cluster has another environment than the driver.
    module = project / "connectors.py"
    module.write_text(module.read_text().replace('PREFIX = ""', f'PREFIX = "{prefix}"'))
    said(command, project)
    found = consume_all(broker.bootstrap, prefix + "counts")
    counts = [(record.value or b"").decode().split() for record in found]
    assert each_once((word, int(number)) for word, number in counts) == WANTED


@pytest.mark.parametrize("of_checkout", [True, False], ids=["checkout", "wheel"])
def test_a_project_is_tested_by_pytest(wheel: Path, project: Path, of_checkout: bool) -> None:
    pytest_of_it = "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_flow.py"
    python = Path(sys.executable) if of_checkout else wheel
    assert "1 passed" in said([python, *pytest_of_it], project)


def test_the_environment_of_the_wheel_has_nothing_of_the_checkout(
    wheel: Path, tmp_path: Path
) -> None:
    where = said([wheel, "-c", "import meander; print(meander.__file__)"], tmp_path)
    assert Path(where.strip()).is_relative_to(wheel.parents[1])


def test_a_project_runs(project: Path, broker: Broker, prefix: str) -> None:
    # A worker imports a library of this name before it loads the flow.
    (project / "msgspec.py").write_text("raise ImportError('a module of the user')")
    check_run(Path(sys.executable), project, broker, prefix, "local[3]")


def test_a_project_runs_on_a_standalone_cluster(
    wheel: Path, project: Path, broker: Broker, prefix: str, tmp_path: Path
) -> None:
    with cluster(tmp_path, workers=1, cores=2) as master:
        check_run(wheel, project, broker, prefix, master)


def test_a_type_checker_finds_wrong_functions(wheel: Path, project: Path, tmp_path: Path) -> None:
    command: list[str | Path] = [
        sys.executable, "-m", "mypy", "--strict", "--python-executable", wheel, "--cache-dir",
        tmp_path / "cache", "flow.py", "sources.py",
    ]  # fmt: skip
    assert "no issues found" in said(command, project)
    for module, wrong, errors in (
        ("flow.py", WRONG, ('Argument 3 to "fold"',)), ("flow.py", WRONG_CALLS, CALL_ERRORS),
        ("sources.py", WRONG_SOURCES, SOURCE_ERRORS),
    ):  # fmt: skip
        right = (project / module).read_text()
        (project / module).write_text(right + wrong)
        done = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)
        assert done.returncode == 1
        assert [error for error in errors if error not in done.stdout] == []
        assert f"found {len(errors)} error" in done.stdout.lower(), done.stdout
        (project / module).write_text(right)
