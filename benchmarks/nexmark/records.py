"""The records that queries read and give, with the fields that each query needs.

A reader of JSON skips all other fields, as Flink's does. The `dateTime` of a result is the earliest
logical time at which the result can be known: that of its last record, or the end of its window.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import fields

SQL_TYPES = {"int": "BIGINT", "float": "DOUBLE", "str": "STRING"}


def columns_of(kind: type[Struct]) -> dict[str, str]:
    """Return the columns of records by name, with their types in SQL.

    >>> columns_of(Selected)
    {'auction': 'BIGINT', 'price': 'BIGINT', 'dateTime': 'BIGINT'}
    """
    return {field.encode_name: SQL_TYPES[field.type.__name__] for field in fields(kind)}


class Bid(Struct, rename="camel", frozen=True, gc=False):
    """A bid with all its fields."""

    auction: int
    bidder: int
    price: int
    channel: str
    url: str
    date_time: int
    extra: str


class Offer(Struct, rename="camel", frozen=True, gc=False):
    """A bid without its texts."""

    auction: int
    bidder: int
    price: int
    date_time: int


class Person(Struct, rename="camel", frozen=True, gc=False):
    """A person with what names a place."""

    id: int
    name: str
    city: str
    state: str
    date_time: int


class Auction(Struct, rename="camel", frozen=True, gc=False):
    """An auction without its texts and prices."""

    id: int
    seller: int
    category: int
    date_time: int
    expires: int


class Converted(Struct, rename="camel", frozen=True, gc=False):
    """A bid whose price is in euros."""

    auction: int
    bidder: int
    price: float
    date_time: int
    extra: str


class Selected(Struct, rename="camel", frozen=True, gc=False):
    """The price of a bid for one of the chosen auctions."""

    auction: int
    price: int
    date_time: int


class Suggestion(Struct, rename="camel", frozen=True, gc=False):
    """An auction of someone who lives near."""

    name: str
    city: str
    state: str
    id: int
    date_time: int


class Sale(Struct, rename="camel", frozen=True, gc=False):
    """An auction that has closed with a bid."""

    id: int
    category: int
    seller: int
    price: int
    date_time: int


class CategoryPrice(Struct, rename="camel", frozen=True, gc=False):
    """The average price of the sales of a category so far."""

    category: int
    price: float
    date_time: int


class SellerPrice(Struct, rename="camel", frozen=True, gc=False):
    """The average price of the last sales of a seller."""

    seller: int
    price: float
    date_time: int


class HotItem(Struct, rename="camel", frozen=True, gc=False):
    """An auction with the most bids of a window."""

    auction: int
    num: int
    date_time: int


class NewSeller(Struct, rename="camel", frozen=True, gc=False):
    """A person who came and sold in one window."""

    id: int
    name: str
    date_time: int
