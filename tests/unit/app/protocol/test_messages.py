"""What workers say to the coordinator arrives as what it was."""

from __future__ import annotations

import pytest

from meander.app.protocol.messages import Failure
from meander.connectors.kafka.client import Unreachable
from meander.connectors.links.links import LinkBroken
from meander.dataflow.errors import WorkerLost, worker_lost
from meander.schemas.errors import MeanderError, SetupError
from meander.state.keys.ids import WorkerId

OTHER = WorkerId(0)


def said(error: MeanderError) -> MeanderError:
    return Failure.from_bytes(Failure.at("worker 1", error, "").to_bytes()).error()


def test_who_hears_of_a_broken_link_takes_it_for_one() -> None:
    """Else a flow would end at it that can go on without the other."""
    error = said(LinkBroken(OTHER, "the connection closed"))
    assert isinstance(error, LinkBroken) and error.peer == OTHER
    assert str(error) == str(LinkBroken(OTHER, "the connection closed"))


@pytest.mark.parametrize(
    "error",
    [
        SetupError("a", "b", "c"),
        Unreachable("a", "b", "c"),
        worker_lost("a", "b"),
        MeanderError("a", "b"),
    ],
)
def test_any_other_error_is_of_the_kind_that_it_was(error: MeanderError) -> None:
    assert type(said(error)) is type(error) and str(said(error)) == str(error)
    assert type(worker_lost("a", "b")) is WorkerLost
