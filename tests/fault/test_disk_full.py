"""I5 where a worker's disk takes no more: the flow ends and says whose disk, and what is committed
then and by the next run is each result once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from tests.support.kafka.brokers import Broker
from tests.support.kafka.topics import consume_all, until
from tests.support.process.flow_process import lines, meander, run_command, until_silent
from tests.support.process.word_counts import each_once

HEARTBEAT_TIMEOUT, KEYS, ROUNDS = 2, 600, 3
FLOW = """
import random, resource
from pathlib import Path
from meander import KafkaSink, KafkaSource
from meander import Checkpointing, Flow

FULL = Path({full!r})


def counted(state, word):
    "States that no disk makes smaller; workers alone come here."
    if FULL.exists():
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
    number = state[0] + 1
    return (number, random.Random(f"{{word}} {{number}}").randbytes(6_000)), f"{{word}} {{number}}"


flow = Flow(
    "counts", delivery="exactly_once", checkpoints=Checkpointing(0.5), state_memory=1 << 20
)
words = flow.source(KafkaSource("{prefix}lines", value="str")).key_by(lambda word: word)
counts = words.fold("count", init=lambda: (0, b""), step=counted)
counts.sink(KafkaSink("{prefix}counts", value="str"))
"""


def test_a_disk_that_is_full_ends_the_flow_which_goes_on_once_there_is_room(
    broker: Broker, prefix: str, tmp_path: Path
) -> None:
    module, full = tmp_path / "flow.py", tmp_path / "full"
    module.write_text(FLOW.format(prefix=prefix, full=str(full)))
    words = [f"w{n % KEYS}" for n in range(ROUNDS * KEYS)]
    lines(broker.bootstrap, prefix, words[:KEYS])
    run = run_command(module, prefix, HEARTBEAT_TIMEOUT)

    def committed() -> Counter[str]:
        found = consume_all(broker.bootstrap, prefix + "counts", committed=True)
        said = [(record.value or b"").decode().split() for record in found]
        return each_once((word, int(count)) for word, count in said)

    with meander(tmp_path, broker.bootstrap, *run) as flow:
        until(lambda: committed().total() == KEYS, f"the first are out: {flow.said}")
        taken = len(flow.of("checkpointed"))
        # The next may have been frozen before all was out; the one after it holds their states.
        until(lambda: len(flow.of("checkpointed")) > taken + 1, "a checkpoint holds states")
        full.touch()
        lines(broker.bootstrap, prefix, words[KEYS:], create=False, after=KEYS)
        assert flow.exit_code() == 2, flow.said
        assert "the state database at" in flow.said
        assert "File too large; check that its disk has room, and run the flow again" in flow.said
    until_silent(broker, prefix, HEARTBEAT_TIMEOUT)
    full.unlink()
    with meander(tmp_path, broker.bootstrap, *run, "--until-end") as flow:
        assert flow.exit_code() == 0, flow.said
        assert "checkpoint_selected" in flow.said, "it goes on from more than its beginning"
    assert committed() == Counter(words)
