"""A command that has had its final answer is never handled again, through any recoveries; a command
that waited for its turn is taken up again, and each one that had started is reported as aborted."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from meander.app.driver.commands import EXECUTION_ENDED, FLOW_ENDED, OpenCommands
from meander.app.recovery.decision_log import from_bytes, to_bytes
from meander.dataflow.control.decisions import CommandsDoneDecision
from meander.dataflow.coordinator import rescaler
from meander.schemas.status import (
    Aborted,
    Accepted,
    BinMoved,
    CommandRejected,
    Completed,
    Event,
    Planned,
    Rescaled,
    Rescaling,
)
from meander.state.keys.ids import ExecutionId
from tests.support.property.budget import FIRST_SEED
from tests.support.sim.driven_flow import Driven, ManualTopic, driven_flow

CASES, EXECUTION = 12, ExecutionId(1)
NEVER = 4_102_444_800_000
"""A time that never comes, in milliseconds."""


class Executions:
    """Executions of a flow that read one control topic, with all their events."""

    def __init__(self) -> None:
        self.topic, self.told = ManualTopic(), list[Event]()
        self._commands, self._opened = OpenCommands(), ExitStack()
        self._logged = CommandsDoneDecision(0)
        self.now = self._start()

    def recover(self, driver_dies: bool = False) -> None:
        """End the execution by a failure, and start the next one.

        Its driver knows what is durable, or all that it has done itself.
        """
        self._end()
        if driver_dies:
            self._commands = OpenCommands()
            for event in self.told:
                self._commands.note(event)
        done = (self._commands.done or self._logged).with_done(self._commands.answered)
        self._commands.advance(done)
        self.told += self._commands.end(EXECUTION_ENDED)
        self.topic.start(done)
        self.now = self._start()

    def said(self, id: str) -> list[str]:
        """The events of a command in all executions, without its moves."""
        return [one.type for one in (*self.told, *self.now.told)
                if one.key == id and not isinstance(one, BinMoved)]  # fmt: skip

    def wait_for_a_turn(self) -> None:
        """Let a rescale start that waits for its worker, and queue another behind it."""
        self.topic.put({"type": "rescale", "id": "first", "workers": 3})
        self.now.until_told(Rescaling, "first")
        self.topic.put({"type": "rescale", "id": "queued", "workers": 3})

    def close(self) -> None:
        self._opened.close()

    def _start(self) -> Driven:
        return self._opened.enter_context(driven_flow(self.topic, self._commands))

    def _end(self) -> None:
        log = self.now.decision_log
        for written in log.written[: log.durable]:
            _, decision = from_bytes(to_bytes(EXECUTION, written))
            assert isinstance(decision, CommandsDoneDecision)
            self._logged = decision
        self.told += self.now.told
        self._opened.close()


@pytest.fixture
def executions() -> Iterator[Executions]:
    executions = Executions()
    yield executions
    executions.close()


ANSWERED: dict[str, tuple[dict[str, object], type[Event]]] = {
    "rejected": ({"time": 1}, CommandRejected),
    "completed": ({}, Completed),
    "planned": ({"dry_run": True}, Planned),
}


@pytest.mark.parametrize("held", [False, True], ids=["logged", "unlogged"])
@pytest.mark.parametrize("driver_dies", [False, True], ids=["worker", "driver"])
@pytest.mark.parametrize("answer", ANSWERED)
def test_an_answered_command_behind_a_queued_one_does_not_run_again(
    executions: Executions, answer: str, driver_dies: bool, held: bool
) -> None:
    executions.wait_for_a_turn()
    more, kind = ANSWERED[answer]
    executions.now.act()
    executions.now.decision_log.held = held
    executions.topic.put(executions.now.migrate("m", 1, bins=[0]) | more)
    executions.now.until_told(kind, "m")
    before = executions.said("m")
    for _ in range(3):
        executions.recover(driver_dies)
    executions.now.pool.up = True
    executions.now.until_told(Rescaled, "queued")
    assert executions.said("m") == before
    assert executions.said("first") == ["rescaling", "aborted"]
    assert executions.said("queued")[-1] == "rescaled", "and the queued one runs, once"
    assert executions.said("queued").count("rescaling") == 1


@pytest.mark.parametrize("driver_dies", [False, True], ids=["worker", "driver"])
def test_a_started_command_behind_a_queued_one_is_aborted_once(
    executions: Executions, driver_dies: bool
) -> None:
    executions.wait_for_a_turn()
    executions.topic.put(executions.now.migrate("m", 1, bins=[0], time=NEVER))
    executions.now.until_told(Accepted, "m")
    for _ in range(2):
        executions.recover(driver_dies)
        executions.now.act()
    assert executions.said("m") == ["accepted", "aborted"]
    (aborted,) = (one for one in executions.told if isinstance(one, Aborted) and one.id == "m")
    assert aborted == Aborted(id="m", by="", reason=EXECUTION_ENDED, offset=2)
    assert (aborted.ms, aborted.bins, aborted.bytes, aborted.unmoved) == (None, None, None, None)


def test_a_queued_command_survives_an_execution_that_has_not_read_it(
    executions: Executions,
) -> None:
    executions.wait_for_a_turn()
    executions.topic.put(executions.now.migrate("m", 1, time=1))
    executions.now.until_told(CommandRejected, "m")
    executions.recover()
    executions.recover(driver_dies=True)
    executions.topic.put(executions.now.migrate("later", 1, time=1))
    executions.now.pool.up = True
    executions.now.until_told(Rescaled, "queued")
    assert executions.said("m") == executions.said("later") == ["rejected"]


@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + CASES))
def test_no_command_has_two_final_answers_and_none_runs_after_one(seed: int) -> None:
    executions = Executions()
    put = give_commands(random.Random(f"answered {seed}"), executions)
    executions.now.stop(executions.now.decision_log.flush)
    executions.recover(driver_dies=True)
    executions.now.act()
    assert not executions.now.told, "the flow has left no command"
    executions.close()
    ends = final_answers(executions.told)
    assert max(ends.values()) == 1
    aborts = {one.by for one in executions.told if isinstance(one, Aborted)}
    assert {*put} <= {*ends} | aborts, "every command has had an answer"


def give_commands(rng: random.Random, executions: Executions) -> list[str]:
    """Give commands while executions end, workers join and decisions are held back; return ids."""
    put = list[str]()
    for _ in range(40):
        match rng.randrange(8):
            case 0 | 1 | 2:
                put.append(f"c{len(put)}")
                executions.topic.put(some_command(rng, put))
            case 3:
                executions.now.pool.up = not executions.now.pool.up
            case 4:
                executions.now.decision_log.flush(held=rng.random() < 0.5)
            case 5 if rng.random() < 0.5:
                executions.recover(driver_dies=rng.random() < 0.5)
        for _ in range(rng.randrange(30)):
            executions.now.act()
    executions.now.decision_log.flush()
    executions.now.act()
    return put


def final_answers(told: list[Event]) -> Counter[str]:
    """Count the final answers of each command; expect that no command runs after one."""
    ends = Counter[str]()
    for event in told:
        match event:
            case Accepted() | BinMoved() | Rescaling():
                assert not ends[event.id], f"{event.id} runs after its final answer"
            case Completed() | CommandRejected() | Planned(last=True) | Aborted():
                ends[event.id] += 1
            case Rescaled(id=id) if not ends[id]:
                # A migration's worker may leave after the answer, which `rescaled` reports.
                ends[id] += 1
    return ends


def some_command(rng: random.Random, ids: list[str]) -> dict[str, object]:
    id = ids[-1]
    bins = rng.sample(range(4), rng.randint(1, 4))
    match rng.randrange(6):
        case 0:
            return {"type": "rescale", "id": id, "workers": rng.randint(1, 4)}
        case 1:
            return {"type": "abort", "id": id, "command": rng.choice(ids)}
        case 2:
            return {"type": "migrate", "id": id, "bins": bins, "worker": 1, "time": 1}
        case 3:
            return {"type": "migrate", "id": id, "bins": bins, "worker": 0, "time": NEVER}
        case 4:
            return {"type": "migrate", "id": id, "bins": bins, "worker": 1, "dry_run": True}
        case _:
            worker = rng.randrange(4)
            return {"type": "migrate", "id": id, "bins": bins, "worker": worker}


# -- the end of the flow


def test_the_end_of_a_flow_aborts_its_commands_and_leaves_none(executions: Executions) -> None:
    executions.wait_for_a_turn()
    executions.topic.put(executions.now.migrate("m", 1, bins=[0], time=NEVER))
    executions.topic.put({"type": "stop", "id": "s"})
    executions.now.until(lambda: executions.now.commands.stopped)
    flushed = list[int]()
    executions.now.stop(lambda: flushed.append(len(executions.now.told)))
    aborted = [one for one in executions.now.told if isinstance(one, Aborted)]
    assert [(one.id, one.offset, one.reason) for one in aborted] == [
        ("first", 0, FLOW_ENDED), ("m", 2, FLOW_ENDED), ("queued", 1, FLOW_ENDED)
    ]  # fmt: skip
    assert flushed == [len(executions.now.told) - 3], "the decision is durable before the answers"
    executions.recover(driver_dies=True)
    executions.now.act()
    assert not executions.now.told


def test_a_queued_command_stays_where_the_log_cannot_tell_its_end(executions: Executions) -> None:
    executions.wait_for_a_turn()
    executions.now.act()
    executions.now.decision_log.held = True

    def flush() -> None:
        raise TimeoutError

    with pytest.raises(TimeoutError):
        executions.now.stop(flush)
    executions.recover(driver_dies=True)
    executions.now.pool.up = True
    executions.now.until_told(Rescaled, "queued")
    assert "aborted" not in executions.said("queued")


def test_no_more_commands_wait_than_one_decision_names(
    executions: Executions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rescaler, "MAX_QUEUED", 1)
    executions.wait_for_a_turn()
    executions.topic.put({"type": "rescale", "id": "more", "workers": 2})
    executions.now.until_told(CommandRejected, "more")
    assert "1 commands wait for their turn" in executions.now.the(CommandRejected, "more").reason
