"""Capabilities: who may send what, and that giving one up is final (I1)."""

from __future__ import annotations

import pytest

from meander.dataflow.graph.graph import Location
from meander.dataflow.progress.capability import Capability, CapabilityError, CapabilitySet
from meander.dataflow.progress.change_batch import ChangeBatch
from meander.state.times.time import Time

AT = Location(3)


@pytest.fixture
def changes() -> ChangeBatch:
    return ChangeBatch()


def taken(changes: ChangeBatch) -> set[tuple[int, Time, int]]:
    return set(changes.drain())


@pytest.mark.parametrize(("own", "before", "after"), [(5, 4, 6), ((2, 3), (9, 2), (2, 4))])
def test_it_permits_its_time_and_what_is_not_before(
    changes: ChangeBatch, own: Time, before: Time, after: Time
) -> None:
    """I1: what has been given up cannot be sent, held or gone back to."""
    capability = Capability(AT, own, changes)
    capability.check(own)
    capability.check(after)
    for attempt in (capability.check, capability.delayed, capability.downgrade):
        with pytest.raises(CapabilityError, match="does not permit"):
            attempt(before)
    assert capability.time == own
    assert taken(changes) == {(AT, own, 1)}


def test_downgrading_counts_the_new_time_and_discounts_the_old_in_one(
    changes: ChangeBatch,
) -> None:
    capability = Capability(AT, 5, changes)
    changes.drain()
    capability.downgrade(8)
    assert taken(changes) == {(AT, 8, 1), (AT, 5, -1)}
    capability.downgrade(8)
    assert taken(changes) == set()


def test_a_delayed_capability_is_independent(changes: ChangeBatch) -> None:
    capability = Capability(AT, 5, changes)
    later = capability.delayed(7)
    capability.drop()
    later.check(7)
    assert taken(changes) == {(AT, 7, 1)}


def test_it_is_given_up_once_however_often_it_is_dropped(changes: ChangeBatch) -> None:
    """I1, I7: a second decrement would free a time that another still holds."""
    with Capability(AT, 5, changes) as capability:
        changes.drain()
        capability.drop()
        capability.drop()
    assert taken(changes) == {(AT, 5, -1)}


def test_it_is_given_up_when_a_function_fails(changes: ChangeBatch) -> None:
    """I7: an error on the way out must not leave a time held for ever."""
    capability = Capability(AT, 5, changes)
    changes.drain()
    with pytest.raises(ZeroDivisionError), capability:
        _ = 1 // 0
    assert taken(changes) == {(AT, 5, -1)}


def test_it_cannot_be_used_after_its_release(changes: ChangeBatch) -> None:
    """I1: the frontier may have passed its time since."""
    capability = Capability(AT, 5, changes)
    capability.drop()
    for attempt in (capability.check, capability.delayed, capability.downgrade):
        with pytest.raises(CapabilityError, match="dropped before its use"):
            attempt(9)


def test_changes_that_cancel_out_within_a_step_are_not_sent(changes: ChangeBatch) -> None:
    Capability(AT, 5, changes).drop()
    assert changes.drain() == []


# -- Held: the least of many


def test_held_keeps_the_least_of_what_it_is_given(changes: ChangeBatch) -> None:
    held = CapabilitySet()
    for time in (7, 5, 9):
        held.retain(Capability(AT, time, changes))
    assert held.least == (5,)
    assert taken(changes) == {(AT, 5, 1)}


def test_held_gives_up_what_is_no_longer_owed(changes: ChangeBatch) -> None:
    held = CapabilitySet()
    held.retain(Capability(AT, 5, changes))
    held.downgrade(8)
    assert taken(changes) == {(AT, 8, 1)}
    held.downgrade()
    held.downgrade()
    assert taken(changes) == {(AT, 8, -1)}
    with pytest.raises(CapabilityError, match="no capability permits 9"):
        held.capability_for(9)


def test_held_never_claims_a_time_that_it_has_no_right_to(changes: ChangeBatch) -> None:
    """I1: something owed that no capability covers is a defect, and is seen at once."""
    held = CapabilitySet()
    with pytest.raises(CapabilityError, match="no capability permits 5"):
        held.downgrade(5)
    held.retain(Capability(AT, 6, changes))
    with pytest.raises(CapabilityError, match="does not permit 5"):
        held.downgrade(5)


def test_held_keeps_a_right_to_each_of_the_least_times_of_a_nested_scope(
    changes: ChangeBatch,
) -> None:
    """I1: in a loop two times may have none in common that both are rights to."""
    held = CapabilitySet()
    for time in ((5, 7), (6, 0), (6, 2), (5, 9)):
        held.retain(Capability(AT, time, changes))
    assert taken(changes) == {(AT, (5, 7), 1), (AT, (6, 0), 1)}
    held.downgrade((6, 3), (5, 8), (7, 3))
    assert taken(changes) == {
        (AT, (5, 7), -1), (AT, (6, 0), -1), (AT, (5, 8), 1), (AT, (6, 3), 1),
    }  # fmt: skip
    with pytest.raises(CapabilityError, match=r"no capability permits \(5, 0\)"):
        held.downgrade((5, 0))
    held.retain(Capability(AT, (5, 1), changes))
    assert held.least == ((5, 1),)
