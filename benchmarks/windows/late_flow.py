"""The flow whose memory is measured: windows and a join of two streams, both with late records.

A record is a key, its own time in milliseconds and when it was due. Records of even times are
impressions, the others clicks. All state of a key is over within seconds.
"""

from __future__ import annotations

from benchmarks.counting import asked, key_of
from benchmarks.load import KEY
from meander import Flow, KafkaSink, KafkaSource, session, tumbling

SECONDS = 2.0
"""The length of windows and of the interval of the join."""
LATE = 0.5
"""The seconds by which a record may be late."""


def own_ms(record: object) -> int:
    """Return the own time of a record."""
    assert isinstance(record, bytes)
    return int(record[KEY:].split()[0])


def kind(record: bytes) -> str:
    """Return the side of a record in the join."""
    return "click" if own_ms(record) % 2 else "impression"


def outcome(impression: bytes, click: bytes | None) -> bytes:
    """Return an impression with a click, or alone."""
    return impression if click is None else click


flow = Flow("bench")
keyed = flow.source(KafkaSource(asked("SOURCE", "in"), value="bytes", time=own_ms)).key_by(key_of)
results = KafkaSink(asked("PREFIX") + "out", "bytes", origin=False, time="wall")
counts = keyed.window("counts", tumbling(SECONDS, late=LATE)).fold(int, lambda n, _: n + 1)
visits = keyed.window("visits", session(SECONDS / 4, longest=60, late=LATE))
lengths = visits.fold(int, lambda n, _: n + 1, merge=lambda a, b: a + b)
impressions, clicks = keyed.split(kind, "impression", "click")
joined = impressions.join(
    clicks, within=(0, SECONDS), late=LATE, how="left", step=outcome, name="joined"
)
joined.sink(results, "write pairs")
for name, stream in (("counts", counts), ("visits", lengths)):
    texts = stream.map(lambda result: b"%d" % result["value"], name=f"{name} text")
    texts.sink(results, f"write {name}")
