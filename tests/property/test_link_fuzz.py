"""I7: on a link only that is taken which a member of ours would have sent just so, byte for byte;
anything else is refused with its cause, and what concerns other members stays as it is."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from copy import copy

import pytest

from meander.connectors.links.links import CurveKeys, CurveLinks
from meander.dataflow.interfaces import Frame
from meander.schemas.errors import MeanderError
from meander.state.keys.ids import WorkerId
from tests.support.property.budget import FIRST_SEED, LINKS, seeds
from tests.support.property.frames import DAMAGES
from tests.support.property.real_frames import KINDS

FLOOR = 10_000
SENDER, RECEIVER, OTHER = map(WorkerId, range(3))
BOUND = 1500
"""Bytes of one frame: most real ones have fewer, some have more."""
ENGINES = [kind.frame for kind in KINDS if kind.refusal is MeanderError]
APPS = [b"".join(kind.frame) for kind in KINDS if kind.refusal is ValueError]
Said = tuple[Sequence[Frame], Sequence[bytes]]
"""Frames of the engine, or one message of the app."""
Speaks = Callable[[Said, int], Frame]
"""Puts what is said, at its place in the link's sequence, on the wire."""


@pytest.fixture
def receiver() -> Iterator[CurveLinks]:
    links = CurveLinks(RECEIVER, CurveKeys.generate(), max_frame=BOUND)
    yield links
    links.detach()
    links.close(linger=0)


@pytest.fixture
def speaks(monkeypatch: pytest.MonkeyPatch) -> Iterator[Speaks]:
    """The real sending side, whose messages go to the test."""
    links, wire = CurveLinks(SENDER, CurveKeys.generate()), list[Frame]()

    def queued(peer: WorkerId, parts: Frame) -> bool:
        wire.append(parts)
        return True

    def speak(said: Said, sequence: int) -> Frame:
        frames, messages = said
        links._sent[RECEIVER] = sequence
        for frame in frames:
            links.send(RECEIVER, frame)
        links.flush()
        for message in messages:
            links.send_message(RECEIVER, message)
        return wire.pop()

    monkeypatch.setattr(links, "_try_send", queued)
    yield speak
    links.detach()
    links.close(linger=0)


def something(rng: random.Random) -> Said:
    if rng.random() < 0.3:
        return [], [rng.choice(APPS)]
    return [rng.choice(ENGINES) for _ in range(rng.randint(1, 5))], []


def heard(links: CurveLinks, message: Frame, due: int) -> tuple[str, Said]:
    """What is wrong with a message, and what has been taken of it."""
    links._expected = {SENDER: due, OTHER: 7}
    before = besides(links)
    header, *parts = message
    cause = links._accept(SENDER, header, parts)
    assert besides(links) == before
    assert links._expected[OTHER] == 7
    assert links._expected[SENDER] in ({due, due + 1} if cause else {due + 1})
    frames, messages = links.receive(), links.receive_messages()
    assert {sender for sender, _ in (*frames, *messages)} <= {SENDER}
    return cause, ([frame for _, frame in frames], [said for _, said in messages])


def besides(links: CurveLinks) -> dict[str, object]:
    """All that a member knows, but what has come."""
    known = {
        name: copy(it) for name, it in vars(links).items() if isinstance(it, dict | list | set)
    }
    for name in ("_frames", "_messages", "_expected"):
        del known[name]
    return known | {"broken": links._broken, "parting": links._detached}


def fits(said: Said) -> bool:
    return all(frame and sum(map(len, frame)) <= BOUND for frame in said[0])


def damaged(message: Frame, rng: random.Random) -> Frame:
    """Somewhere, or in its header: that is short, and all depends on it."""
    for _ in range(rng.choice((1, 1, 2, 4))):
        damage, cut = rng.choice(DAMAGES), rng.choice((1, len(message)))
        message = [*damage(message[:cut], rng), *message[cut:]] or [b""]
    return message


def test_a_message_of_a_member_arrives_as_it_was_sent(receiver: CurveLinks, speaks: Speaks) -> None:
    """I6: unless a frame of it is longer than the bound."""
    for seed in range(FIRST_SEED, FIRST_SEED + 1000):
        rng = random.Random(seed)
        said, due = something(rng), rng.choice((0, 1, 300, 1 << 40))
        cause, taken = heard(receiver, speaks(said, due), due)
        assert taken == (said if fits(said) else ([], []))
        assert ("more than the bound" in cause) != fits(said)


@pytest.mark.soak
def test_a_mutated_message_is_one_that_a_member_would_have_sent_or_refused(
    receiver: CurveLinks, speaks: Speaks, record_property: Callable[[str, object], None]
) -> None:
    answers: Counter[bool] = Counter()
    for seed in seeds(LINKS, FLOOR):
        rng = random.Random(f"link {seed}")
        due = rng.choice((0, 1, 300, 1 << 40))
        message = damaged(speaks(something(rng), due), rng)
        cause, taken = heard(receiver, message, due)
        if cause:
            assert taken == ([], []), f"seed {seed}"
        else:
            assert fits(taken), f"seed {seed}"
            assert speaks(taken, due) == message, f"seed {seed}"
        answers[bool(cause)] += 1
    record_property("mutated messages on a link", answers.total())
    record_property("of these refused by the link", answers[True])
    assert min(answers[True], answers[False]) > answers.total() / 10
