"""A migration to a worker that is not there has it started; whatever comes between, every command
is answered once, the driver goes on, and a worker that came for nothing goes again."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from meander.app.driver.commands import OpenCommands
from meander.dataflow.control.decisions import CommandsDoneDecision
from meander.schemas.status import (
    Aborted,
    Accepted,
    CommandRejected,
    Completed,
    Joined,
    JoinFailed,
    Left,
    Planned,
    Rescaled,
    Rescaling,
)
from meander.state.keys.ids import WorkerId
from tests.support.sim.driven_flow import Driven, driven_flow

TWO, THREE = WorkerId(2), WorkerId(3)


@pytest.fixture
def driven() -> Iterator[Driven]:
    with driven_flow() as driven:
        yield driven


def test_a_worker_that_a_migration_names_is_started_joins_and_gets_the_bins(
    driven: Driven,
) -> None:
    driven.topic.put(driven.migrate("m", 2))
    driven.until_told(Rescaling, "m")
    assert driven.pool.launched == [TWO]
    driven.pool.up = True
    driven.until_told(Completed, "m")
    assert driven.said("m") == ["rescaling", "joined", "accepted", "completed"]
    assert driven.the(Accepted, "m").offset == 0
    assert driven.bins() == {2}
    assert driven.topic.committed == [1]
    driven.end()


def test_a_worker_that_came_for_nothing_goes_again(driven: Driven) -> None:
    time = driven.soon()
    driven.topic.put(driven.migrate("m", 2, time=time))
    driven.until_passed(time)
    driven.pool.up = True
    driven.until_told(Rescaled, "m")
    assert driven.said("m") == ["rescaling", "joined", "rejected", "left", "rescaled"]
    rejected = driven.the(CommandRejected, "m")
    assert f"time {time} ms is closed" in rejected.reason
    assert driven.pool.handles == [0, 1]
    assert driven.bins() == {0, 1}
    driven.end()


def test_a_rejected_id_can_be_given_again_however_its_workers_came_and_went(
    driven: Driven,
) -> None:
    for worker in (2, 3):
        time = driven.soon()
        driven.pool.up = False
        driven.topic.put(driven.migrate("m", worker, time=time))
        driven.until_passed(time)
        driven.pool.up = True
        driven.until(lambda: len(driven.said("m")) == 5)
        assert driven.said("m") == ["rescaling", "joined", "rejected", "left", "rescaled"]
        driven.told.clear()
    driven.end()


def test_a_joined_worker_that_cannot_leave_again_is_reported(driven: Driven) -> None:
    driven.pool.up = True
    driven.topic.put(driven.migrate("m", 2))
    driven.until_told(Joined, "m")
    driven.until(lambda: driven.coordinator.closed_before is None, driven.flow)
    driven.until_told(Rescaled, "m")
    assert driven.said("m") == ["rescaling", "joined", "rejected", "rescaled"]
    ended = driven.the(Rescaled, "m")
    assert "worker 2 stays, though nothing moves to it: the flow's sources have" in ended.reason
    driven.end()


def test_a_worker_that_registers_after_the_end_does_not_join(driven: Driven) -> None:
    driven.topic.put(driven.migrate("m", 2))
    driven.until_told(Rescaling, "m")
    driven.until(lambda: driven.coordinator.closed_before is None)
    driven.pool.up = True
    driven.until_told(CommandRejected, "m")
    assert driven.said("m") == ["rescaling", "join_failed", "rejected"]
    driven.end()


@pytest.mark.parametrize(
    "command", [{"type": "checkpoint"}, {"type": "stop", "savepoint": "s"}], ids=["one", "the last"]
)
def test_a_command_that_asks_for_a_checkpoint_is_answered_by_another_driver_too(
    driven: Driven, command: dict[str, object]
) -> None:
    """That driver knows what the one that is lost has told, and no more."""
    driven.topic.put(command | {"id": "c"})
    driven.act()
    next = OpenCommands()
    for event in driven.told:
        next.note(event)
    next.advance(CommandsDoneDecision(1))
    assert [event.id for event in next.end("why")] == ["c"]


@pytest.mark.parametrize("joined", [False, True])
def test_a_migration_waits_behind_another_to_the_same_joining_worker(
    driven: Driven, joined: bool
) -> None:
    driven.topic.put(driven.migrate("m1", 2, bins=[0, 1]))
    driven.until_told(Rescaling, "m1")
    if joined:
        driven.pool.up = True
        driven.until_told(Joined, "m1")
    driven.topic.put(driven.migrate("m2", 2, bins=[2, 3]))
    driven.act()
    driven.pool.up = True
    driven.until_told(Completed, "m2")
    driven.until_told(Completed, "m1")
    assert driven.said("m1") == ["rescaling", "joined", "accepted", "completed"]
    assert driven.said("m2") == ["accepted", "completed"]
    assert driven.the(Accepted, "m2").offset == 1
    accepted = [event.id for event in driven.told if isinstance(event, Accepted)]
    assert accepted == ["m1", "m2"]
    assert driven.topic.committed == [1, 2]
    assert (driven.bins(), driven.pool.launched) == ({2}, [TWO])


def test_a_migration_waits_for_a_worker_that_a_rescale_has_started(driven: Driven) -> None:
    driven.topic.put({"type": "rescale", "id": "up", "workers": 3})
    driven.until_told(Rescaling, "up")
    driven.topic.put(driven.migrate("m", 2))
    driven.act()
    driven.pool.up = True
    driven.until_told(Completed, "m")
    assert driven.said("up")[-1] == "rescaled"
    assert driven.bins() == {2}


def test_a_joining_worker_stays_for_a_migration_that_waits_for_it(driven: Driven) -> None:
    time = driven.soon()
    driven.topic.put(driven.migrate("m1", 2, time=time), driven.migrate("m2", 2))
    driven.until_passed(time)
    driven.pool.up = True
    driven.until_told(Completed, "m2")
    assert driven.said("m1") == ["rescaling", "joined", "rejected"]
    assert driven.said("m2") == ["accepted", "completed"]
    assert driven.bins() == {2}


def test_it_goes_once_nothing_waits_for_it(driven: Driven) -> None:
    time = driven.soon()
    driven.topic.put(driven.migrate("m1", 2, time=time), driven.migrate("m2", 2, time=time))
    driven.until_passed(time)
    driven.pool.up = True
    driven.until_told(Left, "m1")
    assert driven.said("m2") == ["rejected"]
    assert driven.pool.handles == [0, 1]


def test_no_number_is_used_twice(driven: Driven) -> None:
    driven.topic.put(driven.migrate("m1", 2), driven.migrate("m2", 2), driven.migrate("m3", 3))
    driven.until_told(Rescaling, "m1")
    driven.pool.drop(TWO, "worker 2: it died")
    driven.until_told(CommandRejected, "m2")
    assert driven.said("m1") == ["rescaling", "join_failed", "rejected"]
    assert driven.said("m2") == ["rejected"]
    driven.pool.up = True
    driven.until_told(Completed, "m3")
    assert driven.pool.launched == [TWO, THREE]
    assert driven.the(JoinFailed, "m1").reason == "worker 2: it died"


# -- aborted


@pytest.mark.parametrize("id", ["first", "second"])
def test_a_migration_that_waits_for_its_worker_can_be_aborted(driven: Driven, id: str) -> None:
    driven.topic.put(driven.migrate("first", 2), driven.migrate("second", 2))
    driven.until_told(Rescaling, "first")
    driven.topic.put({"type": "abort", "id": "a", "command": id})
    driven.until_told(Aborted, id)
    aborted = driven.the(Aborted, id)
    assert (aborted.by, aborted.bins, aborted.unmoved) == ("a", 0, [0, 1, 2, 3])
    assert aborted.reason == "command 'a' has aborted it before it began"
    assert aborted.offset == ["first", "second"].index(id), "who follows it hears of its end"
    driven.pool.up = True
    other = {"first": "second", "second": "first"}[id]
    driven.until_told(Completed, other)
    assert "accepted" not in driven.said(id)
    assert driven.bins() == {2}
    assert driven.topic.committed[-1] == 3
    assert driven.decision_log.written[-1] == CommandsDoneDecision(3), (
        "where the next execution takes up commands"
    )
    assert driven.open_commands.done == CommandsDoneDecision(3)


def test_an_unneeded_joining_worker_joins_and_leaves(driven: Driven) -> None:
    driven.topic.put(driven.migrate("m", 2))
    driven.until_told(Rescaling, "m")
    abort: dict[str, object] = {"type": "abort", "id": "a", "command": "m"}
    driven.topic.put(abort, abort)
    driven.until_told(CommandRejected, "a")
    assert "id 'a' was used before" in driven.the(CommandRejected, "a").reason
    driven.pool.up = True
    driven.until_told(Rescaled, "m")
    assert driven.said("m") == [
        "rescaling", "aborted", "joined", "left", "rescaled"
    ]  # fmt: skip
    assert driven.pool.handles == [0, 1]
    driven.end()


def test_a_rescale_can_be_aborted_until_it_starts(driven: Driven) -> None:
    driven.topic.put(
        {"type": "rescale", "id": "up", "workers": 3},
        {"type": "rescale", "id": "next", "workers": 4},
    )
    driven.until_told(Rescaling, "up")
    driven.topic.put(
        {"type": "abort", "id": "a", "command": "up"},
        {"type": "abort", "id": "b", "command": "no"},
        {"type": "abort", "id": "c", "command": "next"},
    )
    driven.until_told(Aborted, "next")
    started = driven.the(CommandRejected, "a").reason
    assert "'up' has started to change the workers, so it has to complete: wait" in started
    assert driven.the(CommandRejected, "b").reason.endswith("is not running: name one of 'next'")
    aborted = driven.the(Aborted, "next")
    assert (aborted.by, aborted.offset) == ("c", 1), "its follower hears of the end"
    driven.pool.up = True
    driven.until_told(Rescaled, "up")
    assert driven.pool.handles == [0, 1, 2]
    assert driven.topic.committed[-1] == 5
    driven.end()


# -- what is said before


def test_a_dry_run_says_what_would_move_to_a_worker_that_would_be_started(
    driven: Driven,
) -> None:
    driven.topic.put(driven.migrate("m", 2, dry_run=True))
    driven.until_told(Planned, "m")
    planned = driven.the(Planned, "m")
    assert {move[3] for move in planned.moves} == {2}
    assert sorted(move[1] for move in planned.moves) == [0, 1, 2, 3]
    driven.topic.put(driven.migrate("no", 2, dry_run=True, operator="n"))
    driven.until_told(CommandRejected, "no")
    assert not driven.pool.launched


def test_a_dry_run_says_that_there_is_no_slot(driven: Driven) -> None:
    driven.rescaler.plans._slots = 2
    driven.topic.put(driven.migrate("m", 2, dry_run=True))
    driven.until_told(CommandRejected, "m")
    reason = driven.the(CommandRejected, "m").reason
    assert "3 workers need a slot each, and the master has 2 in all" in reason


@pytest.mark.parametrize("worker", [1, 2], ids=["that is there", "to be started"])
def test_an_id_that_comes_twice_in_a_moment_is_the_first_ones(driven: Driven, worker: int) -> None:
    driven.pool.up = True
    driven.topic.put(driven.migrate("m", worker), driven.migrate("m", 1, bins=[0]))
    driven.until_told(Completed, "m")
    accepted = driven.the(Accepted, "m")
    assert (accepted.offset, len(accepted.bins)) == (0, 4)
    rejected = driven.the(CommandRejected, "m")
    assert (rejected.offset, "was used before" in rejected.reason) == (1, True)


# -- shares


def test_a_rescale_to_the_same_number_gives_a_share_to_a_worker_without_bins(
    driven: Driven,
) -> None:
    driven.topic.put(driven.migrate("m", 1))
    driven.until_told(Completed, "m")
    assert driven.coordinator.without_bins() == [0]
    driven.topic.put({"type": "rescale", "id": "same", "workers": 2})
    driven.until_told(Rescaled, "same")
    assert driven.said("same") == ["rescaling", "rescaled"]
    assert driven.coordinator.without_bins() == []
    driven.end()


def test_a_rescale_reports_that_the_joining_workers_got_no_bins(driven: Driven) -> None:
    driven.pool.up = True
    driven.topic.put({"type": "rescale", "id": "up", "workers": 3})
    driven.until_told(Joined, "up")
    driven.until(lambda: driven.coordinator.closed_before is None, driven.flow)
    driven.until_told(Rescaled, "up")
    ended = driven.the(Rescaled, "up")
    assert ended.workers == 3
    assert ended.reason.startswith("the joined workers get no share: the flow's sources have ended")
    driven.end()
