"""Windows, joins and tables on real processes give the results of the reference, whatever moves,
comes, goes or dies meanwhile; and no other definition takes their states."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from typer.testing import CliRunner

from meander.app.cli.main import app
from tests.support.kafka.brokers import Broker
from tests.support.kafka.topics import PATIENCE, until
from tests.support.process.flow_process import kill, meander
from tests.support.process.windows_flow import WindowsFlow

pytestmark = pytest.mark.timeout(2 * PATIENCE)


def test_windows_and_joins_move_come_back_and_give_their_results_once(
    broker: Broker, prefix: str, tmp_path: Path
) -> None:
    """I2 and I5: what is committed equals the results of one thread from all records at once."""
    visits = WindowsFlow(broker, prefix, tmp_path)

    def said(*words: str, code: int = 0) -> str:
        where = "--prefix", prefix, "--bootstrap", broker.bootstrap
        done = CliRunner().invoke(app, [*words, *where])
        assert done.exit_code == code, done.output
        return done.output

    def command(name: str, *words: str) -> None:
        said(name, "visits", *words)

    visits.feed()
    visits.feed()
    run = visits.run("--master", "local[4]", "--wait")
    with meander(tmp_path, broker.bootstrap, *run, "--workers", "2") as flow:
        flow.until_event("started")
        with visits.load():
            until(lambda: visits.committed() > 0, "a window has closed")
            command("migrate", "--bins", "0-7", "--worker", "1")
            command("rescale", "--workers", "3")
            flow.until_event("checkpointed")
            kill(flow.workers[1])
            until(lambda: len(flow.of("started")) > 1, f"it runs again: {flow.said}")
            command("migrate", "--bins", "8-15", "--worker", "0", "--strategy", "fluid")
            kill(flow.process.pid)
        flow.until_gone()
    with meander(tmp_path, broker.bootstrap, *run, "--workers", "3") as flow:
        flow.until_event("started")
        with visits.load():
            command("rescale", "--workers", "2")
            command("migrate", "--bins", "0-11", "--worker", "1")
            command("stop", "--savepoint", "open")
        assert flow.exit_code() == 0, flow.said
    for other in {"minute": 2000}, {"near": 50}, {"slide": 600}:
        visits.define(**other)
        refused = said("run", str(visits.module), code=2)
        assert "another name" in refused, refused
    visits.define()
    with meander(tmp_path, broker.bootstrap, *run, "--workers", "1") as flow:
        visits.close()
        visits.until_answered(flow)
        kill(flow.process.pid, signal.SIGINT)
        assert flow.exit_code() == 128 + signal.SIGINT, flow.said
    results = visits.check()
    assert results.pop("top") > 8, "a window over all users gives one"
    assert min(results.values()) > 30
