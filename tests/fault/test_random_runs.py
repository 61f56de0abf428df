"""I1 to I9 on real processes: per key, results are 1, 2, 3, ... in this order on their topic,
whatever moves, dies, stands still or is refused meanwhile."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from meander.connectors.local_broker.broker import LocalBroker
from tests.support.kafka.topics import PATIENCE
from tests.support.process.spark_cluster import cluster
from tests.support.property.budget import FIRST_REAL_SEED, REAL_SECONDS, REAL_SEEDS
from tests.support.random_run.configuration import Configuration
from tests.support.random_run.strikes import strikes
from tests.support.random_run.world import World

EACH = REAL_SECONDS / REAL_SEEDS
EXECUTORS = 4


@pytest.mark.soak
@pytest.mark.timeout(EACH + 3 * PATIENCE)
@pytest.mark.parametrize("seed", range(FIRST_REAL_SEED, FIRST_REAL_SEED + REAL_SEEDS))
def test_each_keys_results_are_a_sequence_whatever_happens(
    seed: int,
    own_broker: LocalBroker,
    prefix: str,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    configuration = Configuration.drawn(seed)
    with contextlib.ExitStack() as opened:
        master = None
        if configuration.cluster:
            (tmp_path / "spark").mkdir()
            master = opened.enter_context(cluster(tmp_path / "spark", EXECUTORS))
        folder = tmp_path / "flow"
        folder.mkdir()
        world = opened.enter_context(World(configuration, own_broker, prefix, folder, master))
        try:
            end = time.monotonic() + EACH
            for planned in strikes(seed):
                world.live(planned.pause, started=not planned.at_once)
                if time.monotonic() > end:
                    break
                came = planned.strike.strike(world)
                world.happened[planned.strike.name] += 1
                world.note(f"{planned.strike}: {came}")
            world.finish()
        except Exception as error:
            raise AssertionError(world.report(error)) from error
        for what, times in world.happened.items():
            record_property(f"real {what}", times)
        record_property("real results, each in its key's sequence", world.results.seen)
