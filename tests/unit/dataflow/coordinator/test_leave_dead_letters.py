"""A worker leaves once its dead letters are durable, so the next checkpoint needs none of them."""

from __future__ import annotations

from typing import Any

import pytest

from meander import Flow, KafkaSink, KafkaSource
from meander.dataflow.simulation.in_memory import ListDeadLetters
from meander.testing import TestFlow

KEYS = 20
ACTIONS = 1_500
"""More actions than an undisturbed leave takes."""


def refuse(count: int, n: object) -> tuple[int, object]:
    raise ValueError(n)


def left(run: TestFlow) -> bool:
    return any(event["type"] == "left" for event in run.events)


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
@pytest.mark.parametrize("seed", range(2))
def test_a_worker_leaves_once_its_dead_letters_are_durable(
    seed: int, delivery: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = Flow("f", bins=3, delivery=delivery)
    numbers = flow.source(KafkaSource("numbers")).key_by(lambda n: n)
    numbers.fold("refuse", int, refuse).sink(KafkaSink("counts"))
    with TestFlow(flow, 2, seed) as run:
        run.run_until_idle()
        with monkeypatch.context() as broken:
            broken.setattr(
                ListDeadLetters, "delivered", lambda dead: dead.added - len(dead.waiting)
            )
            run.feed("numbers", *range(KEYS), ms=1_000)
            run.control({"type": "rescale", "id": "down", "workers": 1})
            for number in range(ACTIONS):
                run.act()
                if not number % 50:
                    run.sim.clock.advance(0.1)
            waiting = [bool(dead.waiting) for dead in run._dead.values()]
            assert waiting == [True, True], "each worker has refused a record"
            assert not left(run)
        run.run_until_idle()
        assert left(run)
        run.run()
        assert len(run.dead_letters) == KEYS
