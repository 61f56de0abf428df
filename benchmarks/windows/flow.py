"""The flow that is measured: a count over columns of each key, alone or in windows.

MEANDER_BENCH_WINDOW chooses among `none`, `tumbling`, `hopping` and `session`, and SECONDS is their
size or gap. Without windows each record has a result, with them each window has.
"""

from __future__ import annotations

from benchmarks.counting import asked, key_of
from meander import Flow, KafkaSink, KafkaSource, columns, hopping, session, tumbling
from meander.dataflow.windows.window import Windows

flow = Flow("bench")
keyed = flow.source(KafkaSource(asked("SOURCE", "in"), value="bytes")).key_by(key_of)
seconds = float(asked("SECONDS", "30"))
windows: dict[str, Windows] = {
    "tumbling": tumbling(seconds), "hopping": hopping(seconds, every=seconds / 5),
    "session": session(seconds),
}  # fmt: skip
window = asked("WINDOW", "none")
counts = (
    keyed.fold("count", columns.count()) if window == "none"
    else keyed.window("count", windows[window]).fold(columns.count())
)  # fmt: skip
counts.sink(KafkaSink(asked("PREFIX") + "out", origin=False, time="wall"))
