"""The demo as a newcomer runs it, on the first flights of the table."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from pathlib import Path

import pytest

from meander.app.demo.data import unpack
from tests.support.kafka.topics import PATIENCE, consume_all

FLIGHTS = 20_000
RATE = 4_000
PHASES = {"before", "during", "after"}

_RUN = """
import sys
from pathlib import Path
from meander.app.demo import demo
from meander.app.config.settings import Settings
settings = Settings.load(None, {}, [], sys.argv[1])
out, table = Path("out"), Path("small.csv")
sys.exit(demo.main(settings, rate=int(sys.argv[2]), build=out, table=table))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("demo")
    with unpack(folder).open() as whole:
        (folder / "small.csv").write_text("".join(itertools.islice(whole, FLIGHTS + 1)))
    return folder


def test_the_demo_ends_with_no_difference_and_says_what_to_try_next(
    folder: Path, bootstrap: str
) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", _RUN, bootstrap, str(RATE)],
        cwd=folder, capture_output=True, text=True, timeout=PATIENCE, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "Traceback" not in ran.stdout + ran.stderr

    told = json.loads((folder / "out" / "demo.json").read_text())
    assert (told["records"], told["results"], told["differences"]) == (FLIGHTS, 2 * FLIGHTS, 0)
    assert told["faults"] == []
    assert {one["strategy"] for one in told["migrations"]} == {"fluid", "all-at-once"}
    assert sum(one["bins"] for one in told["migrations"]) == 128, "half of all bins"
    assert [one["id"] for one in told["migrations"] if one["asked"] is not None] == ["at-a-date"]
    assert len(told["moved_bins"]) == 128
    for one in told["moved_bins"]:
        assert one["before_by_old"] > 0
        assert one["after_by_new"] > 0
        assert one["by_others"] == 0
    for figure in ("p50_ms", "p99_ms", "max_ms"):
        assert told[figure].keys() == PHASES
    assert sum(told["latency_records"].values()) == FLIGHTS
    backlog = told["backlog"]
    assert backlog["bound"] == RATE
    assert 0 < backlog["most"] <= FLIGHTS
    assert backlog["kept_up"] == (backlog["most"] <= RATE) == (backlog["records"] == 0)
    assert ("did not keep up" in ran.stdout) != backlog["kept_up"]
    assert (folder / "out" / "demo.png").read_bytes().startswith(b"\x89PNG")

    assert "\r" not in ran.stdout, "nothing is written over where nobody watches"
    assert "\x1b" not in ran.stdout
    assert f"{FLIGHTS:,} flights answered in" in ran.stdout
    assert "tasks of Spark in" in ran.stdout

    commands = [line for line in ran.stdout.splitlines() if "org.apache.kafka.tools" in line]
    produce, consume = (run_as_printed(command) for command in commands)
    assert produce.returncode == 0, produce.stderr
    (control,) = {word for word in commands[0].split() if word.endswith("flights.control")}
    assert json.loads(consume_all(bootstrap, control)[-1].value or b"")["id"] == "mine"
    assert consume.stdout.count("meander.time:") == 10, consume.stderr


def run_as_printed(command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, shell=True, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
