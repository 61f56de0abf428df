"""Links to those who come and go: from the first engine frame on a link's loss ends the execution
(I7), and no more once both ends have said all."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from meander.connectors.links.links import CurveKeys, CurveLinks, LinkBroken
from tests.support.links.members import A, B, peer_of, until


@pytest.fixture
def member_and_newcomer() -> Iterator[tuple[CurveLinks, CurveLinks]]:
    """A runs, and B is about to join."""
    a, b = CurveLinks(A, CurveKeys.generate()), CurveLinks(B, CurveKeys.generate())
    b.admit([peer_of(a)])
    a.admit([peer_of(b)])
    a.connect([peer_of(b)], joining=True)
    b.connect([peer_of(a)])
    yield a, b
    for one in (a, b):
        one.detach()
        one.close(linger=0)


def until_gone(links: CurveLinks) -> None:
    """Look at a peer's end until it has been noticed."""

    def noticed() -> bool:
        assert list(links.receive()) == []
        return not links._dealers

    until(links, noticed)


def test_a_joining_worker_that_dies_breaks_no_link(
    member_and_newcomer: tuple[CurveLinks, CurveLinks],
) -> None:
    a, b = member_and_newcomer
    b.send_message(A, b"I am here")
    assert until(a, a.receive_messages) == [(B, b"I am here")]
    b.close(linger=0)
    until_gone(a)
    a.send_message(B, b"into the void")
    assert list(a.receive_messages()) == []


def test_an_engine_frame_for_a_dead_joining_worker_is_a_loss(
    member_and_newcomer: tuple[CurveLinks, CurveLinks],
) -> None:
    a, b = member_and_newcomer
    b.close(linger=0)
    until_gone(a)
    a.send(B, [b"an opening"])
    with pytest.raises(LinkBroken, match="the link to worker 1: the connection closed"):
        a.flush()
    with pytest.raises(LinkBroken, match="the link to worker 1"):
        until(a, a.receive)


def test_the_death_of_a_joining_worker_is_a_loss_from_its_first_engine_frame_on(
    member_and_newcomer: tuple[CurveLinks, CurveLinks],
) -> None:
    a, b = member_and_newcomer
    a.send(B, [b"an opening"])
    a.flush()
    assert until(b, b.receive) == [(A, [b"an opening"])]
    b.close(linger=0)
    with pytest.raises(LinkBroken, match="the link to worker 1: the connection was lost"):
        until(a, a.receive)


def test_the_last_frames_of_a_leaving_worker_arrive_and_its_exit_is_no_loss(
    member_and_newcomer: tuple[CurveLinks, CurveLinks],
) -> None:
    a, b = member_and_newcomer
    a.send(B, [b"an opening"])
    a.flush()
    for number in range(100):
        b.send(A, [number.to_bytes(2, "big"), b"x" * 10_000])
        b.flush()
    b.send_message(A, b"that was all")
    got: list[bytes] = []
    while not (last := a.receive_messages()):
        got += [frame[0] for _, frame in a.receive()]
        a.wait(0.1)
    got += [frame[0] for _, frame in a.receive()]
    assert last == [(B, b"that was all")]
    assert got == [number.to_bytes(2, "big") for number in range(100)]
    a.release(B)
    b.close(linger=0)
    until_gone(a)
    a.send(B, [b"for nobody"])
    a.flush()


def test_who_has_left_is_let_in_no_more(
    member_and_newcomer: tuple[CurveLinks, CurveLinks],
) -> None:
    a, b = member_and_newcomer
    assert a.callback("", b.public)
    a.release(B)
    assert not a.callback("", b.public)
