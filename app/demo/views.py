"""What the demo's oracle computes, as views of Spark SQL over the three topics and the table.

Guarantees one row per result, and one per record that has none, so that whatever is missing,
doubled or made up shows; the running aggregates count each record of the source once, in the order
that the results' own headers name. Cost: each topic is read once, if `KEPT` is kept.
"""

from __future__ import annotations

from meander.state.times.time import SEQUENCE_BITS

_FLIGHT = (
    "time_hour: string, minute: bigint, carrier: string, flight: bigint, tailnum: string, "
    "origin: string, dest: string, arr_delay: bigint, distance: bigint"
)
_PLANE = (
    "tailnum: string, carrier: string, arr_delay: bigint, miles: bigint, flights: bigint, "
    "distance: bigint, missing_delays: bigint, mean_delay: double"
)
_CARRIER = (
    "carrier: string, flights: bigint, distance: bigint, planes: bigint, furthest: bigint, "
    "missing_delays: bigint, mean_delay: double"
)
_CAUSE = ", ".join(
    f"`meander.{name}`: bigint" for name in ("partition", "offset", "index", "time", "worker")
)
SOURCE_COLUMNS = (
    f"partition int, offset bigint, headers struct<time: bigint>, value struct<{_FLIGHT}>"
)
PLANE_COLUMNS = f"headers struct<{_CAUSE}>, value struct<{_PLANE}>"
CARRIER_COLUMNS = f"headers struct<{_CAUSE}>, value struct<{_CARRIER}>"
TABLE_COLUMNS = (
    "year int, month int, day int, dep_time int, sched_dep_time int, dep_delay bigint, "
    "arr_time int, sched_arr_time int, arr_delay bigint, carrier string, flight bigint, "
    "tailnum string, origin string, dest string, air_time bigint, distance bigint, hour int, "
    "minute bigint, time_hour string"
)

TABLE = (
    f"SELECT struct({', '.join(one.split(':')[0] for one in _FLIGHT.split(', '))}) AS value "
    "FROM demo_csv"
)
_FLIGHTS = "SELECT partition, offset, headers.time AS millis, value FROM demo_source"
_RESULTS = """
SELECT CAST(headers.`meander.partition` AS int) AS partition, headers.`meander.offset` AS offset,
       headers.`meander.index` AS index, headers.`meander.time` AS time,
       headers.`meander.worker` AS worker, value
FROM demo_{topic}
"""

ROWS = """
SELECT coalesce(sum(abs(unpaired)), 0) AS differing
FROM (SELECT sum(side) AS unpaired
      FROM (SELECT value, 1 AS side FROM demo_table
            UNION ALL SELECT value, -1 AS side FROM demo_flights)
      GROUP BY value)
"""
"""Rows and records without a partner; equal ones are counted, not merged."""

_ANSWERED = """
SELECT /*+ SHUFFLE_HASH(r) */ f.partition, f.offset, f.millis, f.value AS flight,
       r.time AS answered, r.worker, r.value AS result
FROM demo_flights f FULL OUTER JOIN demo_plane_results r
  ON r.partition = f.partition AND r.offset = f.offset AND r.index = 0
"""
# A record without a result has no logical time of its own; the greatest time read so far in its
# partition stands in, so that one lost result is one difference and not thousands.
_TIMED = f"""
SELECT *, coalesce(answered, reached) AS time, if(first, flight, NULL) AS counted
FROM (SELECT *, shiftleft(max(millis) OVER so_far, {SEQUENCE_BITS}) AS reached,
             max(answered) OVER earlier AS before,
             coalesce(offset > coalesce(max(offset) OVER earlier, -1), false) AS first
      FROM demo_answered
      WINDOW so_far AS (PARTITION BY partition ORDER BY offset, answered
                        ROWS UNBOUNDED PRECEDING),
             earlier AS (PARTITION BY partition ORDER BY offset, answered
                         ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING))
"""
"""`first` is false for a record's second result, and for results without a record."""

_EXPECTED_PLANES = """
SELECT partition, offset, first, time, reached, before, answered, worker, result.tailnum AS key,
       expected, result <=> expected AS equal
FROM (SELECT *, if(partition IS NULL, NULL, named_struct(
               'tailnum', plane,
               'carrier', flight.carrier,
               'arr_delay', flight.arr_delay,
               'miles', flight.distance,
               'flights', count(counted) OVER so_far,
               'distance', sum(counted.distance) OVER so_far,
               'missing_delays',
               count(counted) OVER so_far - count(counted.arr_delay) OVER so_far,
               'mean_delay', avg(counted.arr_delay) OVER so_far)) AS expected
      FROM (SELECT *, coalesce(flight.tailnum, '(none)') AS plane FROM demo_timed)
      WINDOW so_far AS (PARTITION BY plane ORDER BY time, partition, offset
                        ROWS UNBOUNDED PRECEDING))
"""
_EXPECTED_CARRIER_VALUES = """
SELECT partition, offset, time, named_struct(
         'carrier', expected.carrier,
         'flights', count(*) OVER so_far,
         'distance', sum(expected.miles) OVER so_far,
         'planes', count_if(expected.flights = 1 AND known) OVER so_far,
         'furthest', coalesce(max(if(known, expected.distance, NULL)) OVER so_far, 0),
         'missing_delays', count(*) OVER so_far - count(expected.arr_delay) OVER so_far,
         'mean_delay', avg(expected.arr_delay) OVER so_far) AS expected
FROM (SELECT *, expected.tailnum <> '(none)' AS known FROM demo_expected_planes WHERE first)
WINDOW so_far AS (PARTITION BY expected.carrier ORDER BY time, partition, offset
                  ROWS UNBOUNDED PRECEDING)
"""
_EXPECTED_CARRIERS = """
SELECT /*+ SHUFFLE_HASH(e) */ r.time AS answered, r.worker, r.value.carrier AS key, e.expected,
       r.value <=> e.expected AND r.time <=> e.time AS equal
FROM demo_carrier_results r FULL OUTER JOIN demo_expected_carrier_values e
  ON r.partition = e.partition AND r.offset = e.offset AND r.index = 0
"""

VIEWS = {
    "flights": _FLIGHTS,
    "plane_results": _RESULTS.format(topic="planes"),
    "carrier_results": _RESULTS.format(topic="carriers"),
    "answered": _ANSWERED,
    "timed": _TIMED,
    "expected_planes": _EXPECTED_PLANES,
    "expected_carrier_values": _EXPECTED_CARRIER_VALUES,
    "expected_carriers": _EXPECTED_CARRIERS,
}
"""Each is `demo_` and its name, and builds on those before it."""
KEPT = ("flights", "expected_planes")
"""What is wanted twice."""

# All is counted per bin and span of time with one owner; what has no result has neither.
_COUNTS = """
SELECT /*+ BROADCAST(k), BROADCAST(o) */ o.bin, o.since,
       count(answered) AS results,
       count_if(answered IS NULL) AS missing,
       count_if(expected IS NULL) AS unexpected,
       count_if(answered IS NOT NULL AND expected IS NOT NULL AND NOT equal) AS differing,
       count_if(answered IS NOT NULL AND NOT e.worker <=> o.worker) AS strayed{more}
FROM {expected} e
LEFT JOIN demo_keys k USING (key)
LEFT JOIN demo_owners o ON o.bin = k.bin AND answered >= o.since AND answered < o.upto
GROUP BY ALL
"""
TOTALS = {
    "records": "true",
    "bumped": "time > reached",
    "early": "time < reached",
    "backwards": "time < before",
    "missing_tailnums": "expected.tailnum = '(none)'",
    "missing_delays": "expected.arr_delay IS NULL",
}
"""What is counted over the records of the source."""
_MORE = "".join(f", count_if(first AND {what}) AS {name}" for name, what in TOTALS.items())
PLANE_COUNTS = _COUNTS.format(expected="demo_expected_planes", more=_MORE)
CARRIER_COUNTS = _COUNTS.format(expected="demo_expected_carriers", more="")
