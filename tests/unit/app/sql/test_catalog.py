"""The name of a view means one thing: a state, a topic, or an error that says which there are."""

from __future__ import annotations

import pytest

from meander.app.sql.catalog import ViewName, find_name, shown_name, unknown_view

STATE, TOPIC = ViewName("state", "totals"), ViewName("topic", "totals")
PLANES, OTHER = ViewName("state", "per plane"), ViewName("topic", "test.totals")
VIEWS = [STATE, TOPIC, PLANES, OTHER]


@pytest.mark.parametrize("view", VIEWS)
def test_each_view_has_a_name_of_its_own(view: ViewName) -> None:
    assert find_name(view.full, VIEWS) == view
    assert find_name(shown_name(view, VIEWS).strip("`"), VIEWS) == view


def test_a_name_of_a_state_and_a_topic_names_none_of_them() -> None:
    error = unknown_view("totals", VIEWS)
    assert "several views have that name" in str(error)
    assert "state:totals, topic:totals" in str(error)
    assert find_name("totals", [STATE, PLANES]) == STATE


def test_an_exact_name_precedes_one_in_another_case() -> None:
    upper = ViewName("topic", "Totals")
    assert find_name("Totals", [STATE, upper]) == upper
    assert find_name("TOTALS", [STATE]) == STATE


def test_an_unknown_name_has_near_ones() -> None:
    assert "name one of these: `per plane`" in str(unknown_view("perplane", VIEWS))
    assert "state:totals" in str(unknown_view("nothing", VIEWS))
