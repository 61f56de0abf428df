"""Of all that is reported of a failure the first cause is named."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from types import SimpleNamespace
from typing import cast

import pytest

from app.crew import Crew
from app.launcher import Ended, SparkTask
from app.messages import Beat
from app.registry import Door, join
from connectors.links import CurveLinks, Keys, LinkBroken, Peer
from schemas.errors import MeanderError
from state.ids import COORDINATOR, WorkerId

ZERO = WorkerId(0)
LOCAL = "127.0.0.1"


def test_a_task_that_ends_as_its_link_breaks_says_why() -> None:
    """However late the driver looks: all may have ended by then, so nobody is waited for."""
    task = SimpleNamespace(ended=None)
    with (
        closing(CurveLinks(COORDINATOR, Keys.fresh(), LOCAL, 5.0)) as links,
        closing(Door(LOCAL, links)) as door,
    ):
        crew = Crew(links, door, lambda _: cast(SparkTask, task), [ZERO], 5.0, 5.0, "")
        task.ended = Ended(MeanderError("worker 0", "Spark's JVM has ended"))
        crew.stop(within=5.0)
        cause = crew.cause(LinkBroken(ZERO, "the connection is gone"))
    assert str(cause).startswith("worker 0: Spark's JVM has ended")


def loss(links: CurveLinks) -> LinkBroken:
    """Of the next link that is lost."""
    while True:
        links.wait(5.0)
        try:
            links.told()
        except LinkBroken as error:
            return error


def test_a_worker_whose_lease_is_over_as_its_link_breaks_is_named() -> None:
    """A driver that is busy for so long finds both at once."""
    task = SimpleNamespace(ended=None)
    with (
        closing(CurveLinks(COORDINATOR, Keys.fresh(), LOCAL, 5.0)) as links,
        closing(Door(LOCAL, links)) as door,
    ):
        crew = Crew(links, door, lambda _: cast(SparkTask, task), [ZERO], 5.0, 60.0, "")
        with closing(CurveLinks(ZERO, Keys.fresh(), LOCAL, 5.0)) as own:
            here, there = (Peer(one.me, one.address, one.public) for one in (links, own))
            links.admit([there])
            own.admit([here])
            links.connect([there])
            own.connect([here])
            own.tell(COORDINATOR, Beat().to_bytes())
            while not crew.hands[ZERO].working:
                links.wait(5.0)
                crew.attend(lambda _, __: None)
        broken = loss(links)
        crew.hands[ZERO].heard -= 6.0
        crew.stop(within=0.0)
        cause = crew.cause(broken)
    assert str(cause).startswith("worker 0: nothing was heard of it for ")


def test_who_is_on_its_way_as_a_life_ends_is_turned_away_and_not_waited_for() -> None:
    task = SimpleNamespace(ended=None)
    with (
        closing(CurveLinks(COORDINATOR, Keys.fresh(), LOCAL, 5.0)) as links,
        closing(CurveLinks(ZERO, Keys.fresh(), LOCAL, 5.0)) as own,
        closing(Door(LOCAL, links)) as door,
        ThreadPoolExecutor(1) as worker,
    ):
        crew = Crew(links, door, lambda _: cast(SparkTask, task), [ZERO], 5.0, 5.0, "")
        ticket = door.expect(ZERO)

        def comes() -> None:
            try:
                join(ticket, Keys.fresh(), own, patience=60.0)
            finally:
                task.ended = Ended(None)

        coming = worker.submit(comes)
        crew.stop(within=60.0)
        with pytest.raises(MeanderError, match="turned away: this life of the flow is over"):
            coming.result(timeout=60.0)
