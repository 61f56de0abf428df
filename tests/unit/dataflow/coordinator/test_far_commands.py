"""A pending command of a far time holds up no other command, and an abort counts at once (I7)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from meander import Checkpointing, Flow, KafkaSink, KafkaSource
from meander.dataflow.simulation import simulator
from meander.testing import TestFlow

FAR_MS = 4_102_444_800_000
"""Milliseconds of the year 2100."""
KEYS = 10
Step = dict[str, object]

FAR: Step = {"type": "migrate", "id": "far", "bins": [*range(6)], "worker": 1, "time": FAR_MS}
LATER = FAR | {"id": "later", "bins": [6], "time": FAR_MS + 100}
END: Step = {"type": "abort", "id": "end", "command": "far"}
MOVE: Step = {"type": "migrate", "id": "move", "bins": [1, 2], "worker": 1}
DOWN: Step = {"type": "rescale", "id": "down", "workers": 2}
UP: Step = {"type": "rescale", "id": "up", "workers": 4}


@pytest.fixture(autouse=True)
def few_actions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a flow that hangs fail soon."""
    monkeypatch.setattr(simulator, "MAX_ACTIONS", 40_000)


def states(turns: Sequence[Sequence[Step]], workers: int, seed: int) -> dict[object, str]:
    """Run a flow that receives the commands of each turn at rest, with records in between. Return
    the states of all commands at rest, before the topics end; check the results."""
    flow = Flow("f", bins=3, delivery="exactly_once", checkpoints=Checkpointing(interval=0.5))
    numbers = flow.source(KafkaSource("numbers")).key_by(lambda n: n)
    counted = numbers.fold("count", int, lambda count, n: (count + 1, (n, count + 1)))
    counted.sink(KafkaSink("counts"))
    with TestFlow(flow, workers, seed) as run:
        for turn, commands in enumerate([*turns, ()], 1):
            run.feed("numbers", *range(KEYS), ms=turn * 1_000)
            run.run_until_idle()
            for command in commands:
                run.control(command)
        run.run_until_idle()
        ids = [command["id"] for commands in turns for command in commands]
        found: dict[object, str] = {
            id: answer.state for id in ids if (answer := run.answer(str(id)))
        }
        run.run()
        values: list[Any] = run.values("counts")
    each = [(n, count) for n in range(KEYS) for count in range(1, len(turns) + 2)]
    assert Counter(map(tuple, values)) == Counter(each)
    return found


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("turns", [
    [[FAR, DOWN]], [[FAR], [DOWN]], [[DOWN], [FAR]], [[FAR, MOVE, LATER], [DOWN]],
], ids=["same turn", "before", "after", "with others"])  # fmt: skip
def test_a_leave_ends_before_a_far_move(turns: list[list[Step]], seed: int) -> None:
    assert states(turns, 4, seed).items() >= {"far": "accepted", "down": "rescaled"}.items()


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("turns", [
    [[FAR, DOWN, END]], [[FAR, END, DOWN]], [[FAR], [DOWN], [END]], [[FAR, DOWN], [END, UP]],
], ids=["begun", "aborted", "ended", "and up"])  # fmt: skip
def test_a_leave_ends_beside_an_aborted_far_move(turns: list[list[Step]], seed: int) -> None:
    found = states(turns, 4, seed)
    assert found.pop("far") == "aborted"
    assert {*found.values()} == {"rescaled"}


@pytest.mark.parametrize("strategy", ["batched", "fluid"])
@pytest.mark.parametrize("target", [1, 2])
@pytest.mark.parametrize("bins", [[1, 2, 3], [3, 7]], ids=["its", "some of its"])
def test_a_migration_ends_before_a_far_one(bins: list[int], target: int, strategy: str) -> None:
    move = MOVE | {"bins": bins, "worker": target}
    found = states([[FAR | {"strategy": strategy}, move]], 3, target)
    assert found == {"far": "accepted", "move": "completed"}


@pytest.mark.parametrize("turns", [
    [[FAR, MOVE, LATER], [UP]], [[FAR, UP, MOVE]], [[UP], [FAR]], [[FAR, UP, END]],
    [[FAR], [UP], [DOWN]],
], ids=["before", "between", "after", "aborted", "and down"])  # fmt: skip
def test_a_join_ends_before_a_far_move(turns: list[list[Step]]) -> None:
    found = states(turns, 2, seed=1)
    assert found.pop("far") == ("aborted" if END in turns[0] else "accepted")
    assert found.get("later", "accepted") == "accepted"
    assert {found.get(id) for id in ("up", "down", "move")} <= {"rescaled", "completed", None}


@pytest.mark.parametrize("seed", range(4))
def test_a_worker_may_leave_right_behind_the_abort_of_moves_to_it(seed: int) -> None:
    far = FAR | {"worker": 3}
    assert states([[far], [END, DOWN]], 4, seed) == {"far": "aborted", "down": "rescaled"}


def test_the_refusal_of_a_leave_names_the_abort() -> None:
    flow = Flow("f", bins=3)
    flow.source(KafkaSource("numbers")).key_by(lambda n: n).fold(
        "count", int, lambda count, n: (count + 1, count)
    ).sink(KafkaSink("counts"))
    with TestFlow(flow, 3) as run:
        run.run_until_idle()
        run.control(FAR | {"worker": 2})
        run.control(DOWN)
        run.run_until_idle()
        answer = run.answer("down")
        run.run()
    assert answer is not None
    assert answer.reason == (
        "worker 2 gets bins by command 'far': wait until that is complete, or abort it"
    )
