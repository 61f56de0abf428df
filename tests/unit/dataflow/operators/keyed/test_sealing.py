"""The sealing of states: a state that comes back as it was is not sealed again, any other is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec
import pytest

from meander.dataflow.operators.keyed.logic import (
    LARGEST,
    Sealing,
    StateTooLargeError,
    Upgrade,
    UpgradingSealing,
    unmarked,
)
from meander.state.encoding import codec
from meander.state.encoding.codec import PLAIN, Sealed
from meander.state.encoding.named_types import NamedTypes, in_use, use

KEY = b"\xa1k"


class Bid(msgspec.Struct):
    auction: Any


class Pair(NamedTuple):
    first: Any
    second: Any


@pytest.fixture(autouse=True)
def _named() -> Iterator[None]:
    before = in_use()
    use(NamedTypes([Bid, Pair]))
    yield
    use(before)


@pytest.mark.parametrize("state", [7, "a", (1, 2.5), Pair(1, "b"), (Pair(1, 2), None)])
def test_a_state_that_cannot_change_and_comes_back_is_sealed_already(state: object) -> None:
    sealing = Sealing(PLAIN)
    sealed = sealing.seal(state, KEY)
    assert sealing.seal_after(sealed, sealing.unseal(sealed), KEY) is sealed


@pytest.mark.parametrize("state", [[7], {"a": 1}, Bid(3), (Bid(3), Bid(4))])
def test_a_state_that_has_changed_in_place_is_sealed_again(state: object) -> None:
    """A function may change what it got, and return it."""
    sealing = Sealing(PLAIN)
    sealed = sealing.seal(state, KEY)
    match got := sealing.unseal(sealed):
        case list() | dict():
            got.clear()
        case Bid():
            got.auction = 9
        case (Bid() as first, _):
            first.auction = 9
    after = sealing.seal_after(sealed, got, KEY)
    assert codec.encode_sealed(after) == codec.encode(got) != codec.encode_sealed(sealed)


@pytest.mark.parametrize("state", [7, (1, 2), Pair(1, 2)])
def test_a_state_that_an_upgrade_leaves_alone_is_of_the_new_generation_all_the_same(
    state: object,
) -> None:
    """Otherwise the next record would meet a second upgrade."""
    before = Sealing(PLAIN).seal(state, KEY)
    sealing = UpgradingSealing(PLAIN, [Upgrade(1, lambda same: same)])
    after = sealing.seal_after(before, sealing.unseal(before), KEY)
    assert isinstance(after, Sealed) and unmarked(after.data) == (1, state)


class Reversed:
    """A codec of a user: text as its bytes backwards."""

    name = "reversed"

    def encode(self, state: object, /) -> bytes:
        return str(state).encode()[::-1]

    def decode(self, data: bytes, /) -> object:
        return data[::-1].decode()


def test_a_codec_of_the_user_has_the_bytes_of_each_state() -> None:
    sealing = Sealing(Reversed())
    sealed = sealing.seal("abc", KEY)
    assert isinstance(sealed, Sealed) and sealed.data == b"cba"
    after = sealing.seal_after(sealed, sealing.unseal(sealed), KEY)
    assert after is not sealed and sealing.unseal(after) == "abc"


@pytest.mark.parametrize("make", [lambda text: text, Bid, lambda text: Pair(1, Bid(text))])
def test_a_state_that_cannot_move_is_refused_in_every_form(make: Any) -> None:
    sealing = Sealing(PLAIN)
    sealing.seal(make("x" * (LARGEST - 100)), KEY)
    with pytest.raises(StateTooLargeError):
        sealing.seal(make("x" * (LARGEST + 1)), KEY)
