"""I5: a worker that dies while no broker answers ends a life of the flow, and not the flow: the
next begins once one answers, unless a signal comes first."""

from __future__ import annotations

import signal
from collections import Counter
from pathlib import Path

from meander.connectors.local_broker.broker import LocalBroker
from tests.support.kafka.topics import PATIENCE, until
from tests.support.process.flow_process import FlowProcess, flow_folder, kill, lines, meander
from tests.support.process.word_counts import committed_counts, expected_counts, with_repeats

TEXTS = [f"w{n % 40} v{n % 7}" for n in range(1_000)]
FIRST = len(TEXTS) // 2
WAITS = "recovery_paused"
OPTIONS = '"counts", checkpoints=Checkpointing(interval=0.5)'


def lose_both(flow: FlowProcess, broker: LocalBroker) -> None:
    """Until Kafka has been asked in vain what to go on from."""
    said = flow.said.count(WAITS)
    broker.kill()
    kill(flow.workers[1])
    until(lambda: flow.process.poll() is not None or flow.said.count(WAITS) > said, WAITS)
    assert flow.process.poll() is None, flow.said


def test_a_flow_that_loses_a_worker_and_its_broker_goes_on_once_the_broker_is_back(
    own_broker: LocalBroker, prefix: str, tmp_path: Path
) -> None:
    bootstrap, wanted = own_broker.bootstrap, expected_counts(TEXTS)
    lines(bootstrap, prefix, TEXTS[:FIRST])
    module = flow_folder(tmp_path, prefix)
    module.write_text(module.read_text().replace('"counts"', OPTIONS, 1))

    def answered() -> Counter[str]:
        return with_repeats(committed_counts(bootstrap, prefix))

    words = ["run", str(module), "--prefix", prefix, "--startup-timeout", str(PATIENCE)]
    with meander(tmp_path, bootstrap, *words) as flow:
        flow.until_event("checkpointed")
        until(lambda: answered() == expected_counts(TEXTS[:FIRST]), "the first lines are answered")
        lose_both(flow, own_broker)
        own_broker.start()
        until(lambda: len(flow.of("started")) == 2, f"it lives again: {flow.said}")
        lines(bootstrap, prefix, TEXTS[FIRST:], create=False, after=FIRST)
        until(lambda: answered() == wanted, "every word is counted, one by one")
        assert len(flow.of("recovering")) == 1
        flow.until_said("broker_returned")

        lose_both(flow, own_broker)
        flow.process.send_signal(signal.SIGINT)
        assert flow.exit_code() == 128 + signal.SIGINT, flow.said
        flow.until_gone()
