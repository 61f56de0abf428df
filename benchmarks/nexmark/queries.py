"""The queries of Nexmark as flows, from the topics of a house to one stream of results.

Guarantees that results are a function of the records and the total order alone. Sources whose
records others refer to come first: at one time, persons precede auctions, and auctions precede
bids. A record has its own time as its logical time, as each partition is in the order of time: so
no record is late for a window.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar, cast

from msgspec import Struct

from benchmarks.nexmark.records import (
    Auction,
    Bid,
    CategoryPrice,
    Converted,
    HotItem,
    NewSeller,
    Offer,
    Person,
    Sale,
    Selected,
    SellerPrice,
    Suggestion,
)
from meander import (
    Context,
    Flow,
    KafkaSink,
    KafkaSource,
    KeyedStream,
    Stream,
    WindowResult,
    columns,
    hopping,
    tumbling,
    typed,
)

T = TypeVar("T")
Ranked = TypeVar("Ranked", HotItem, Offer)
STATES = {"OR", "ID", "CA"}
CATEGORY = 10
LAST = 10
"""Sales of a seller that count for the average."""
PARTS = 16
"""Keys that a maximum over all bids is first taken by."""
Open = tuple[int, int, int, int, int] | None
"""The number, the category, the seller and the end of an open auction, and its best price; 0
without a bid. A flat tuple of numbers is stored as it is."""


class Seen(Struct, gc=False, frozen=True):
    """A person who came, or who put something up for sale."""

    person: int
    name: str
    came: int
    """1 for a person who came, else 0."""
    sold: int


@dataclass(frozen=True, slots=True)
class House:
    """The topics of an auction house as sources of a flow, and the lengths of windows."""

    flow: Flow
    prefix: str
    size: float = 10.0
    """Seconds of a window."""
    every: float = 2.0
    """Seconds from one hopping window to the next."""

    def persons(self) -> Stream[Person]:
        return self._source("persons", Person)

    def auctions(self) -> Stream[Auction]:
        return self._source("auctions", Auction)

    def offers(self) -> Stream[Offer]:
        return self._source("bids", Offer)

    def bids(self) -> Stream[Bid]:
        return self._source("bids", Bid)

    def _source(self, name: str, kind: type[T]) -> Stream[T]:
        return self.flow.source(KafkaSource(f"{self.prefix}{name}", typed(kind)), name)


def q0(house: House) -> Stream[Bid]:
    """Pass all bids on."""
    return house.bids()


def q1(house: House) -> Stream[Converted]:
    """Convert prices to euros."""
    return house.bids().map(
        lambda bid: Converted(bid.auction, bid.bidder, 0.908 * bid.price, bid.date_time, bid.extra)
    )


def q2(house: House) -> Stream[Selected]:
    """Select the prices of bids for some auctions."""
    chosen = house.offers().filter(lambda bid: bid.auction % 123 == 0)
    return chosen.map(lambda bid: Selected(bid.auction, bid.price, bid.date_time))


def q3(house: House) -> Stream[Suggestion]:
    """Join auctions of a category with their sellers, if these live near."""
    near = house.persons().filter(lambda person: person.state in STATES)
    items = house.auctions().filter(lambda auction: auction.category == CATEGORY)
    return near.key_by(lambda person: person.id).connect(
        items.key_by(lambda auction: auction.seller), "suggest", lambda: (None, ()), _moved_in,
        _offered,
    )  # fmt: skip


Near = tuple[Person | None, tuple[Auction, ...]]
"""A person, and the auctions that came before the person did."""


def _moved_in(context: Context[int], state: Near, person: Person) -> Near:
    for auction in state[1]:
        context.emit(_suggestion(person, auction))
    return person, ()


def _offered(context: Context[int], state: Near, auction: Auction) -> Near:
    person, waiting = state
    if person is None:
        return None, (*waiting, auction)
    context.emit(_suggestion(person, auction))
    return state


def _suggestion(person: Person, auction: Auction) -> Suggestion:
    at = max(person.date_time, auction.date_time)
    return Suggestion(person.name, person.city, person.state, auction.id, at)


def sales(house: House) -> KeyedStream[Sale, int]:
    """Give each auction with its best price, as it closes."""
    auctions = house.auctions().key_by(lambda auction: auction.id)
    bids = house.offers().key_by(lambda bid: bid.auction)
    return auctions.connect(bids, "close", lambda: None, _opened, _bid, _closed)


def _opened(context: Context[int], _: Open, auction: Auction) -> Open:
    context.timer(auction.expires)
    return auction.id, auction.category, auction.seller, auction.expires, 0


def _bid(context: Context[int], state: Open, bid: Offer) -> Open:
    if state is None:
        context.forget()
        return None
    return state if bid.price <= state[-1] else (*state[:-1], bid.price)


def _closed(context: Context[int], state: Open) -> Open:
    auction, category, seller, expires, best = cast(tuple[int, int, int, int, int], state)
    if best:
        context.emit(Sale(auction, category, seller, best, expires))
    context.forget()
    return None


def q4(house: House) -> Stream[CategoryPrice]:
    """Give the average price of each category with each sale."""
    return sales(house).key_by(lambda sale: sale.category).fold("average", lambda: (0, 0), _average)


def _average(state: tuple[int, int], sale: Sale) -> tuple[tuple[int, int], CategoryPrice]:
    total, count = state[0] + sale.price, state[1] + 1
    return (total, count), CategoryPrice(sale.category, total / count, sale.date_time)


Count = WindowResult[int, int]
"""The number of bids for an auction in a window."""


def counts(house: House) -> Stream[HotItem]:
    """Count the bids for each auction in each window."""
    return _counts(house).map(_hot)


def _counts(house: House) -> KeyedStream[Count, int]:
    auctions = house.offers().map(lambda bid: bid.auction).key_by(lambda auction: auction)
    return auctions.window("count", hopping(house.size, every=house.every)).fold(columns.count())


def _hot(one: Count) -> HotItem:
    return HotItem(one["key"], one["value"], one["end"])


def q5(house: House) -> Stream[HotItem]:
    """Give the auctions with the most bids of each hopping window."""
    # The own time of a result is the last of its window, so those of one end are in one window.
    parts = _counts(house).key_by(lambda one: one["key"] % PARTS)
    most = parts.window("most", tumbling(house.every)).fold(columns.max_by("value"))
    return _most(most.flat_map(_all_hot), "hottest", lambda item: item.num)


def _all_hot(window: WindowResult[int, list[Count]]) -> list[HotItem]:
    return list(map(_hot, window["value"]))


Best = list[Any]
"""The results of a window that no other one exceeds."""


def _most(found: Stream[Ranked], name: str, rank: Callable[[Ranked], int]) -> Stream[Ranked]:
    """Give the results of each window that no other one exceeds."""
    by_end = found.key_by(lambda one: one.date_time)
    return by_end.process(name, list, partial(_compared, rank), on_notify=_all)


def _compared(rank: Callable[[T], int], context: Context[int], best: Best, one: T) -> Best:
    context.notify()
    if not best or rank(one) > rank(best[0]):
        return [one]
    return [*best, one] if rank(one) == rank(best[0]) else best


def _all(context: Context[int], best: Best) -> Best:
    for one in best:
        context.emit(one)
    context.forget()
    return best


def q6(house: House) -> Stream[SellerPrice]:
    """Give the average price of the last sales of a seller with each sale."""
    by_seller = sales(house).key_by(lambda sale: sale.seller)
    return by_seller.process("last", lambda: ((), ()), _sold, on_notify=_averaged)


Sold = tuple[tuple[int, ...], tuple[tuple[int, int], ...]]
"""The prices of the last sales, and the number and the price of each sale of this time."""


def _sold(context: Context[int], state: Sold, sale: Sale) -> Sold:
    context.notify()
    return state[0], (*state[1], (sale.id, sale.price))


def _averaged(context: Context[int], state: Sold) -> Sold:
    # Sales of one time count in the order of their auctions.
    prices, new = state
    for _, price in sorted(new):
        prices = (*prices, price)[-LAST:]
        context.emit(SellerPrice(context.key, sum(prices) / len(prices), context.time_ms))
    return prices, ()


def q7(house: House) -> Stream[Offer]:
    """Give the bids with the highest price of each window."""
    parts = house.offers().key_by(lambda bid: bid.bidder % PARTS)
    highest = parts.window("highest", tumbling(house.size)).fold(columns.max_by("price"))
    return _most(highest.flat_map(_ended), "highest of all", lambda bid: bid.price)


def _ended(window: WindowResult[int, list[Offer]]) -> list[Offer]:
    return [Offer(bid.auction, bid.bidder, bid.price, window["end"]) for bid in window["value"]]


def _came(person: Person) -> Seen:
    return Seen(person.id, person.name, 1, 0)


def _sold_one(auction: Auction) -> Seen:
    return Seen(auction.seller, "", 0, 1)


def q8(house: House) -> Stream[NewSeller]:
    """Give the persons who came and sold in one window."""
    came, sold = house.persons().map(_came), house.auctions().map(_sold_one)
    seen = house.flow.merge(came, sold).key_by(lambda one: one.person)
    in_windows = seen.window("new sellers", tumbling(house.size)).fold(
        columns.struct(
            names=columns.max_by("came", of="name"), came=columns.sum("came"),
            sold=columns.sum("sold"),
        )
    )  # fmt: skip
    both = in_windows.filter(lambda one: bool(one["value"]["came"] and one["value"]["sold"]))
    return both.map(lambda one: NewSeller(one["key"], one["value"]["names"][0], one["end"]))


@dataclass(frozen=True, slots=True)
class Query:
    """A query of Nexmark."""

    title: str
    reads: tuple[str, ...]
    """Its topics."""
    result: type[Struct]
    build: Callable[[House], Stream[Any]]

    def flow(self, sink: str, prefix: str = "", size: float = 10.0, every: float = 2.0) -> Flow:
        """Return the query as a flow to one topic."""
        flow = Flow("bench")
        results = self.build(House(flow, prefix, size, every))
        results.sink(KafkaSink(sink, typed(self.result), origin=False, time="wall"))
        return flow


BIDS, SALES, SELLERS = ("bids",), ("auctions", "bids"), ("persons", "auctions")
QUERIES = {
    "q0": Query("pass through", BIDS, Bid, q0),
    "q1": Query("currency conversion", BIDS, Converted, q1),
    "q2": Query("selection", BIDS, Selected, q2),
    "q3": Query("local item suggestion", SELLERS, Suggestion, q3),
    "q4": Query("average price by category", SALES, CategoryPrice, q4),
    "q5": Query("hot items", BIDS, HotItem, q5),
    "q6": Query("average price by seller", SALES, SellerPrice, q6),
    "q7": Query("highest bid", BIDS, Offer, q7),
    "q8": Query("new sellers", SELLERS, NewSeller, q8),
}
COUNT = "count"
"""What is compared with Python's other engines: the windows of q5 alone."""
