"""The events of Nexmark: persons, auctions and bids, in blocks of columns.

Guarantees that events are a function of the seed and the rate, and that an event names only persons
and auctions that exist by its time. Of 50 events the first is a person, the next three are
auctions, and the others are bids. Proportions, sizes and hot shares are those that Nexmark
publishes. Where Nexmark lets bids name auctions a little ahead of their time, these do not.
Cost: about 2 us per event, with its JSON.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]
PERSONS, AUCTIONS, BIDS = 1, 3, 46
ROUND = PERSONS + AUCTIONS + BIDS
FIRST_ID = 1000
"""Of persons and of auctions."""
CATEGORIES = range(10, 15)
OPEN = 100
"""Auctions that bids choose from, the newest ones."""
ACTIVE = 1000
"""Persons who sell and bid, the newest ones."""
HOT = 100
"""The distance from one hot person or auction to the next. The newest of them is hot."""
HOT_BIDS, HOT_SELLERS, HOT_BIDDERS = 0.5, 0.75, 0.75
"""The shares of bids for a hot auction, of auctions by a hot seller, and of bids by a hot
bidder."""
PERSON_BYTES, AUCTION_BYTES, BID_BYTES = 200, 500, 100
"""The bytes of fields that filling brings a record to, on average."""
CHANNELS = "Google", "Facebook", "Baidu", "Apple"
PLACES = (
    ("Phoenix", "AZ"), ("Los Angeles", "CA"), ("San Francisco", "CA"), ("Boise", "ID"),
    ("Portland", "OR"), ("Bend", "OR"), ("Redmond", "WA"), ("Seattle", "WA"), ("Kent", "WA"),
    ("Cheyenne", "WY"),
)  # fmt: skip
FIRST_NAMES = ("Peter", "Paul", "Luke", "John", "Saul", "Vicky", "Kate", "Julie", "Sarah", "Walter")
LAST_NAMES = (
    "Shultz",
    "Abrams",
    "Spencer",
    "White",
    "Bartels",
    "Walton",
    "Smith",
    "Jones",
    "Noris",
)
BLOCK = 1000 * ROUND
TOPICS = "persons", "auctions", "bids"
_LETTERS = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz", np.uint8)
_POOL = 1 << 16


@dataclass(frozen=True, slots=True)
class Block:
    """The JSON of some events by topic, in order, with the time of each in milliseconds."""

    values: dict[str, list[bytes]]
    times: dict[str, Int64s]


@dataclass(frozen=True, slots=True)
class Generator:
    """A generator of `rate` events per second from `start_ms` on."""

    rate: int = 10_000
    start_ms: int = 1_700_000_000_000
    seed: int = 1

    def blocks(self, events: int, topics: Sequence[str] = TOPICS) -> Iterator[Block]:
        """Yield blocks of events of some topics; all but the last are equally long."""
        for number, first in enumerate(range(0, events, BLOCK)):
            chance = np.random.default_rng((self.seed, number))
            yield self.block(np.arange(first, min(first + BLOCK, events)), chance, topics)

    def block(
        self, numbers: Int64s, chance: np.random.Generator, topics: Sequence[str] = TOPICS
    ) -> Block:
        """Return the events of some numbers, whose times follow from these. `topics` are the first
        ones.

        >>> block = Generator(rate=1000).block(np.arange(50), np.random.default_rng(1))
        >>> [len(block.values[topic]) for topic in TOPICS]
        [1, 3, 46]
        """
        place = numbers % ROUND
        persons, bids = place < PERSONS, place >= PERSONS + AUCTIONS
        parts = persons, ~persons & ~bids, bids
        pool = _LETTERS[chance.integers(0, len(_LETTERS), _POOL)].tobytes().decode()
        makers = self._persons, self._auctions, self._bids
        values, times = {}, {}
        for topic, part, make in zip(topics, parts, makers, strict=False):
            own = numbers[part]
            times[topic] = self.time_of(own)
            values[topic] = make(own, times[topic], chance, pool)
        return Block(values, times)

    def time_of(self, numbers: Int64s) -> Int64s:
        """Return the times of events in milliseconds, shape (n,)."""
        return self.start_ms + numbers * 1000 // self.rate

    def _persons(
        self, numbers: Int64s, times: Int64s, chance: np.random.Generator, pool: str
    ) -> list[bytes]:
        count = len(numbers)
        first, last, place = (
            chance.integers(0, len(names), count) for names in (FIRST_NAMES, LAST_NAMES, PLACES)
        )
        mail, card = chance.integers(0, _POOL - 12, count), chance.integers(0, 10**16, count)
        size, at = _filling(chance, count, PERSON_BYTES - 73)
        rows = zip(last_person(numbers), times, first, last, place, mail, card, at, size,
                   strict=True)  # fmt: skip
        return [
            b'{"id":%d,"name":"%b","emailAddress":"%b@%b.com","creditCard":"%b",'
            b'"city":"%b","state":"%b","dateTime":%d,"extra":"%b"}' % (
                id, f"{FIRST_NAMES[f]} {LAST_NAMES[n]}".encode(), pool[m : m + 7].encode(),
                pool[m + 7 : m + 12].encode(), _card(c), PLACES[p][0].encode(),
                PLACES[p][1].encode(), time, pool[a : a + s].encode(),
            )
            for id, time, f, n, p, m, c, a, s in rows
        ]  # fmt: skip

    def _auctions(
        self, numbers: Int64s, times: Int64s, chance: np.random.Generator, pool: str
    ) -> list[bytes]:
        count = len(numbers)
        person = last_person(numbers)
        sellers = np.where(
            chance.random(count) < HOT_SELLERS, _hot(person), _recent(chance, person, ACTIVE)
        )
        horizon = max(1, 1000 * OPEN * ROUND // (AUCTIONS * self.rate))
        expires = times + 1 + chance.integers(0, 2 * horizon, count)
        initial, category = prices(chance, count), chance.integers(10, 15, count)
        reserve = initial + prices(chance, count)
        name = chance.integers(0, _POOL - 120, count)
        size, at = _filling(chance, count, AUCTION_BYTES - 176)
        rows = zip(last_auction(numbers), name, initial, reserve, times, expires, sellers,
                   category, at, size, strict=True)  # fmt: skip
        return [
            b'{"id":%d,"itemName":"%b","description":"%b","initialBid":%d,"reserve":%d,'
            b'"dateTime":%d,"expires":%d,"seller":%d,"category":%d,"extra":"%b"}' % (
                id, pool[n : n + 20].encode(), pool[n + 20 : n + 120].encode(), low, least, time,
                end, seller, group, pool[a : a + s].encode(),
            )
            for id, n, low, least, time, end, seller, group, a, s in rows
        ]  # fmt: skip

    def _bids(
        self, numbers: Int64s, times: Int64s, chance: np.random.Generator, pool: str
    ) -> list[bytes]:
        count = len(numbers)
        auction, person = last_auction(numbers), last_person(numbers)
        auctions = np.where(
            chance.random(count) < HOT_BIDS, _hot(auction), _recent(chance, auction, OPEN)
        )
        bidders = np.where(
            chance.random(count) < HOT_BIDDERS,
            np.minimum(_hot(person) + 1, person),
            _recent(chance, person, ACTIVE),
        )
        channel = chance.integers(0, len(CHANNELS), count)
        size, at = _filling(chance, count, BID_BYTES - 80)
        rows = zip(auctions, bidders, prices(chance, count), channel, times, at, size, strict=True)
        return [
            b'{"auction":%d,"bidder":%d,"price":%d,"channel":"%b",'
            b'"url":"https://www.nexmark.com/item.htm?query=%d","dateTime":%d,"extra":"%b"}' % (
                item, bidder, price, CHANNELS[c].encode(), a, time, pool[a : a + s].encode()
            )
            for item, bidder, price, c, time, a, s in rows
        ]  # fmt: skip


def last_person(numbers: Int64s) -> Int64s:
    """Return the id of the newest person at each event, shape (n,).

    >>> last_person(np.array([0, 49, 50])).tolist()
    [1000, 1000, 1001]
    """
    return FIRST_ID + numbers // ROUND


def last_auction(numbers: Int64s) -> Int64s:
    """Return the id of the newest auction at each event but the first, shape (n,).

    >>> last_auction(np.array([1, 3, 49, 50, 51])).tolist()
    [1000, 1002, 1002, 1002, 1003]
    """
    return FIRST_ID - 1 + AUCTIONS * (numbers // ROUND) + np.clip(numbers % ROUND, 0, AUCTIONS)


def prices(chance: np.random.Generator, count: int) -> Int64s:
    """Return prices from 100 to 100,000,000 cents, each power of ten as often, shape (n,)."""
    return np.rint(100 * 10 ** (6 * chance.random(count))).astype(np.int64)


def _hot(newest: Int64s) -> Int64s:
    """Return the hot id of each time. The first ids are too few for more than one."""
    return newest // HOT * HOT


def _recent(chance: np.random.Generator, newest: Int64s, among: int) -> Int64s:
    """Return one of the newest ids of each time."""
    oldest = np.maximum(FIRST_ID, newest - among + 1)
    return oldest + chance.integers(0, newest - oldest + 1)


def _filling(chance: np.random.Generator, count: int, size: int) -> tuple[Int64s, Int64s]:
    """Return lengths within a fifth of a size, and places in the pool of letters."""
    sizes = chance.integers(int(0.8 * size), int(1.2 * size) + 1, count)
    return sizes, chance.integers(0, _POOL - 2 * size, count)


def _card(number: int) -> bytes:
    digits = b"%016d" % number
    return b" ".join(digits[n : n + 4] for n in range(0, 16, 4))
