"""The shipped flow: what every plane, and then every airline, has flown so far.

Each flight yields one result per plane and, from that, one per carrier, so both results topics
hold as many records as the source. A flight without a tail number counts under `UNKNOWN`, one
without an arrival delay counts as a missing delay and does not enter the mean. States and results
are integers, but for the mean, which is one division of two of them: equal sums give equal means.
"""

from __future__ import annotations

import os
from typing import TypedDict

from meander import Flow, KafkaSink, KafkaSource, header

UNKNOWN = "(none)"
"""The key of all flights without a tail number."""


class Flight(TypedDict):
    """What the flow uses of one record of the source topic; minutes and miles."""

    tailnum: str | None
    carrier: str
    distance: int
    arr_delay: int | None


class PlaneResult(TypedDict):
    """One flight, and all of its plane's flights up to it."""

    tailnum: str
    carrier: str
    arr_delay: int | None
    miles: int
    flights: int
    distance: int
    missing_delays: int
    mean_delay: float | None


class CarrierResult(TypedDict):
    """All flights of one airline so far; `planes` first seen with it, `furthest` flown by one."""

    carrier: str
    flights: int
    distance: int
    planes: int
    furthest: int
    missing_delays: int
    mean_delay: float | None


PlaneState = tuple[int, int, int, int]
"""Flights, miles, flights with a known delay, the sum of these delays in minutes."""

CarrierState = tuple[int, int, int, int, int, int]
"""Flights, miles, planes, miles of the furthest, flights with a known delay, their sum."""


def plane_of(flight: Flight) -> str:
    """The key of the first stage.

    >>> plane_of({"tailnum": None, "carrier": "AA", "distance": 1, "arr_delay": None})
    '(none)'
    """
    return flight["tailnum"] or UNKNOWN


def mean(total: int, count: int) -> float | None:
    """None where nothing is known.

    >>> mean(3, 2), mean(0, 0)
    (1.5, None)
    """
    return total / count if count else None


def add_flight(state: PlaneState, flight: Flight) -> tuple[PlaneState, PlaneResult]:
    """One more flight of a plane.

    >>> state, result = add_flight(
    ...     (1, 500, 1, 20), {"tailnum": "N1", "carrier": "AA", "distance": 300, "arr_delay": 10}
    ... )
    >>> state, result["mean_delay"]
    ((2, 800, 2, 30), 15.0)
    """
    flights, distance, known, minutes = state
    delay = flight["arr_delay"]
    flights += 1
    distance += flight["distance"]
    if delay is not None:
        known += 1
        minutes += delay
    return (flights, distance, known, minutes), {
        "tailnum": plane_of(flight),
        "carrier": flight["carrier"],
        "arr_delay": delay,
        "miles": flight["distance"],
        "flights": flights,
        "distance": distance,
        "missing_delays": flights - known,
        "mean_delay": mean(minutes, known),
    }


def add_plane(state: CarrierState, plane: PlaneResult) -> tuple[CarrierState, CarrierResult]:
    """One more flight of a carrier, with what its plane had flown by then.

    >>> state, _ = add_flight(
    ...     (0, 0, 0, 0), {"tailnum": "N1", "carrier": "AA", "distance": 300, "arr_delay": None}
    ... )
    >>> add_plane((0, 0, 0, 0, 0, 0), _)[0]
    (1, 300, 1, 300, 0, 0)
    """
    flights, distance, planes, furthest, known, minutes = state
    flights += 1
    distance += plane["miles"]
    if plane["tailnum"] != UNKNOWN:
        planes += plane["flights"] == 1
        furthest = max(furthest, plane["distance"])
    if plane["arr_delay"] is not None:
        known += 1
        minutes += plane["arr_delay"]
    return (flights, distance, planes, furthest, known, minutes), {
        "carrier": plane["carrier"],
        "flights": flights,
        "distance": distance,
        "planes": planes,
        "furthest": furthest,
        "missing_delays": flights - known,
        "mean_delay": mean(minutes, known),
    }


def topics(prefix: str = "") -> tuple[str, str, str]:
    """The source's topic, the planes' results, the carriers' results.

    >>> topics("demo.")
    ('demo.flights', 'demo.flights-per-plane', 'demo.flights-per-carrier')
    """
    return (
        f"{prefix}flights",
        f"{prefix}flights-per-plane",
        f"{prefix}flights-per-carrier",
    )


def build(prefix: str = "") -> Flow:
    """The flow, with its topics under a prefix."""
    source, planes, carriers = topics(prefix)
    flow = Flow("flights")
    flights = flow.source(KafkaSource(source, value="json", time=header("time")))
    per_plane = flights.key_by(plane_of).fold(
        "per_plane", init=lambda: (0, 0, 0, 0), step=add_flight
    )
    per_plane.sink(KafkaSink(planes, value="json"))
    per_carrier = per_plane.key_by(lambda plane: plane["carrier"]).fold(
        "per_carrier", init=lambda: (0, 0, 0, 0, 0, 0), step=add_plane
    )
    per_carrier.sink(KafkaSink(carriers, value="json"))
    return flow


flow = build(os.environ.get("MEANDER_FLIGHTS_PREFIX", ""))
