"""The shipped flow that finds flights which arrive much later than others at their airport.

Each flight gets a robust score: how far its delay lies above the median of the last ones at the
airport, in units of their deviation. A flight beyond a limit becomes an alert. The limit is a
parameter of a changeable logic: a policy raises it where too many flights are beyond it, as in a
storm, and lowers it again. Delays and medians are integers, so equal flights give equal scores.
"""

from __future__ import annotations

import os
from statistics import median_low
from typing import TypedDict

from meander import (
    ChangeableLogic,
    Checkpointing,
    DriftTrigger,
    Flow,
    KafkaSink,
    KafkaSource,
    header,
)

WINDOW = 101
"""The number of earlier delays at an airport that a flight is compared with."""
LEAST = 20
"""The number of earlier delays below which a flight gets no score."""
DEVIATION = 1.4826
"""The standard deviation of normal values, relative to their median deviation."""
ALERTS = 0.04
"""The share of flights that should become alerts."""

Delays = tuple[int, ...]
"""The last known delays of an airport in minutes, the latest last."""


class Arrival(TypedDict):
    """What the flow uses of one record of the source topic."""

    dest: str
    carrier: str
    flight: int
    arr_delay: int | None


class Score(TypedDict):
    """The delay of a flight, and its score; None where too few flights came before."""

    airport: str
    carrier: str
    flight: int
    delay: int
    score: float | None


def score(delays: Delays, arrival: Arrival) -> tuple[Delays, Score]:
    """Compare an arrival with the delays before it.

    >>> flight: Arrival = {"dest": "ATL", "carrier": "DL", "flight": 1, "arr_delay": 100}
    >>> delays, scored = score((-10, 0, 10) * 10, flight)
    >>> scored["score"], len(delays)
    (6.745, 31)
    >>> score((-10, 0), flight)[1]["score"] is None
    True
    """
    delay = arrival["arr_delay"]
    assert delay is not None, "the filter before has left flights without a delay out"
    found: float | None = None
    if len(delays) >= LEAST:
        middle = median_low(delays)
        deviation = median_low([abs(one - middle) for one in delays])
        # A deviation of 0 minutes would make each other delay infinitely far.
        found = round((delay - middle) / (DEVIATION * max(1, deviation)), 3)
    scored: Score = {
        "airport": arrival["dest"], "carrier": arrival["carrier"], "flight": arrival["flight"],
        "delay": delay, "score": found,
    }  # fmt: skip
    return (*delays, delay)[-WINDOW:], scored


class Beyond(ChangeableLogic, frozen=True):
    """A logic that keeps scores beyond a limit.

    >>> late: Score = {"airport": "A", "carrier": "DL", "flight": 1, "delay": 9, "score": 3.0}
    >>> Beyond(limit=3.0)(late), Beyond(limit=3.5)(late)
    (True, False)
    """

    limit: float = 5.0

    def __call__(self, scored: Score) -> bool:
        """Return whether a score reaches the limit."""
        return scored["score"] is not None and scored["score"] >= self.limit


def topics(prefix: str = "") -> tuple[str, str, str]:
    """Return the topics of the flights, their scores and the alerts.

    >>> topics("demo.")
    ('demo.flights', 'demo.flights-scored', 'demo.flights-late')
    """
    return f"{prefix}flights", f"{prefix}flights-scored", f"{prefix}flights-late"


def build(prefix: str = "") -> Flow:
    """Return the flow, with its topics under a prefix."""
    source, scores, alerts = topics(prefix)
    flow = Flow(
        "anomalies", delivery="exactly_once", checkpoints=Checkpointing(interval=10.0),
        policies=[
            DriftTrigger(
                "alert", "limit", target=ALERTS, tolerance=0.3, least=1.0, most=50.0,
                min_records=5000,
            )
        ],
    )  # fmt: skip
    flights = flow.source(KafkaSource[Arrival](source, value="json", time=header("time")))
    arrived = flights.filter(lambda one: one["arr_delay"] is not None, name="arrived")
    by_airport = arrived.key_by(lambda one: one["dest"])
    scored = by_airport.fold("score", init=tuple, step=score)
    scored.sink(KafkaSink(scores, value="json"), name="scores")
    scored.filter(Beyond(), name="alert").sink(KafkaSink(alerts, value="json"), name="alerts")
    return flow


flow = build(os.environ.get("MEANDER_FLIGHTS_PREFIX", ""))
