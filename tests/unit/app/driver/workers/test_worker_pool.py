"""Of all that is reported of a failure the first cause is named."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from meander.app.driver.workers.joining import JoiningWorkers
from meander.app.driver.workers.new_files import NewFiles
from meander.app.driver.workers.spark_launcher import SparkTask, TaskEnd
from meander.app.driver.workers.worker_pool import WorkerPool
from meander.app.loading.flow_code import FlowCode
from meander.app.protocol.messages import WorkerHeartbeat
from meander.app.protocol.registration import RegistrationServer, join
from meander.connectors.links.links import CurveKeys, CurveLinks, LinkBroken, Peer
from meander.dataflow.control.resources import ANYWHERE, Resources
from meander.schemas.errors import MeanderError, SetupError
from meander.state.keys.ids import COORDINATOR, WorkerId

ZERO = WorkerId(0)
LOCAL = "127.0.0.1"


def pool_of(
    links: CurveLinks, door: RegistrationServer, task: object, startup_timeout: float
) -> WorkerPool:
    files = NewFiles(links, FlowCode(Path(__file__)))
    one = cast(SparkTask, task)
    return WorkerPool(
        links,
        door,
        lambda *_: one,
        {ZERO: ANYWHERE},
        5.0,
        startup_timeout,
        "",
        files,
        lambda _: None,
    )


def test_a_task_that_ends_as_its_link_breaks_says_why() -> None:
    """However late the driver looks: all may have ended by then, so nobody is waited for."""
    task = SimpleNamespace(ended=None)
    with (
        closing(CurveLinks(COORDINATOR, CurveKeys.generate(), LOCAL, 5.0)) as links,
        closing(RegistrationServer(LOCAL, links, 5.0)) as door,
    ):
        crew = pool_of(links, door, task, 5.0)
        task.ended = TaskEnd(MeanderError("worker 0", "Spark's JVM has ended"))
        crew.stop(within=5.0)
        cause = crew.cause(LinkBroken(ZERO, "the connection was lost"))
    assert str(cause).startswith("worker 0: Spark's JVM has ended")


def loss(links: CurveLinks) -> LinkBroken:
    """Of the next link that is lost."""
    while True:
        links.wait(5.0)
        try:
            links.receive_messages()
        except LinkBroken as error:
            return error


def test_a_worker_whose_lease_is_over_as_its_link_breaks_is_named() -> None:
    """A driver that is busy for so long finds both at once."""
    task = SimpleNamespace(ended=None)
    with (
        closing(CurveLinks(COORDINATOR, CurveKeys.generate(), LOCAL, 5.0)) as links,
        closing(RegistrationServer(LOCAL, links, 5.0)) as door,
    ):
        crew = pool_of(links, door, task, 60.0)
        with closing(CurveLinks(ZERO, CurveKeys.generate(), LOCAL, 5.0)) as own:
            here, there = (Peer(one.me, one.address, one.public) for one in (links, own))
            links.admit([there])
            own.admit([here])
            links.connect([there])
            own.connect([here])
            own.send_message(COORDINATOR, WorkerHeartbeat().to_bytes())
            while not crew.handles[ZERO].working:
                links.wait(5.0)
                crew.attend(lambda _, __: None)
        broken = loss(links)
        crew.handles[ZERO].received_at -= 6.0
        crew.stop(within=0.0)
        cause = crew.cause(broken)
    assert str(cause).startswith("worker 0: nothing was heard of it for ")


def test_a_worker_that_registers_as_an_execution_ends_is_rejected_at_once_and_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    task = SimpleNamespace(ended=None)
    with (
        closing(CurveLinks(COORDINATOR, CurveKeys.generate(), LOCAL, 5.0)) as links,
        closing(CurveLinks(ZERO, CurveKeys.generate(), LOCAL, 5.0)) as own,
        closing(RegistrationServer(LOCAL, links, 5.0)) as door,
        ThreadPoolExecutor(1) as worker,
    ):
        crew = pool_of(links, door, task, 5.0)
        ticket = door.expect(ZERO)

        def comes() -> None:
            try:
                join(ticket, CurveKeys.generate(), own, startup_timeout=60.0)
            finally:
                task.ended = TaskEnd(None)

        coming = worker.submit(comes)
        crew.stop(within=60.0)
        with pytest.raises(MeanderError, match="rejected it: this execution of the flow is over"):
            coming.result(timeout=60.0)
    assert "registration_rejected worker=0 reason=" in caplog.text


def test_a_joining_worker_without_a_slot_at_its_placement_is_dropped_with_the_remedy() -> None:
    full = SetupError("worker 1", "no free slot on host b", "name another host")
    task = cast(SparkTask, SimpleNamespace(ended=TaskEnd(full), start=lambda: None))
    placement, asked = Resources(host="b"), list[Resources]()

    def task_of(_: WorkerId, where: Resources) -> SparkTask:
        asked.append(where)
        return task

    one = WorkerId(1)
    with (
        closing(CurveLinks(COORDINATOR, CurveKeys.generate(), LOCAL, 5.0)) as links,
        closing(RegistrationServer(LOCAL, links, 5.0)) as door,
    ):
        files = NewFiles(links, FlowCode(Path(__file__)))
        joining = JoiningWorkers(links, door, task_of, 5.0, 5.0, "", files, lambda _: None)
        joining.launch({one: placement})
        joining.attend([ZERO])
        dropped = joining.dropped()
    assert asked == [placement]
    assert dropped == [(one, "worker 1: no free slot on host b; name another host")]
    assert joining.handles == []
