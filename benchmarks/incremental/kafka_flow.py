"""The flow of degrees on Kafka, as `meander run` loads it; MEANDER_BENCH_* name its topics."""

from __future__ import annotations

from benchmarks.counting import asked
from benchmarks.incremental.flows import flow_of
from meander import KafkaSink, KafkaSource

flow = flow_of("degrees", KafkaSource(asked("SOURCE", "in")), KafkaSink(asked("PREFIX") + "out"))
