"""The flow of `joins`: records that look up a row each, in place of the keyed count.

A row has the key of its record, in a table of its own topic. MEANDER_BENCH_ROW=json makes it a dict
in place of bytes, which each look-up decodes.
"""

from __future__ import annotations

from typing import Any

from benchmarks.counting import asked, key_of
from benchmarks.load import KEY
from meander import Flow, KafkaSink, KafkaSource


def step(record: bytes, row: Any) -> bytes:  # noqa: ANN401 (bytes or a dict)
    """The row, with what the record has behind its key."""
    return b"%b%b" % (row if isinstance(row, bytes) else row["name"].encode(), record[KEY:])


flow = Flow("bench")
records = flow.source(KafkaSource(asked("SOURCE", "in"), value="bytes"))
form: Any = "json" if asked("ROW") == "json" else "bytes"
rows = flow.table(KafkaSource(asked("ROWS", "rows"), value=form, key="bytes"), "rows")
joined = records.key_by(key_of).join(rows, step=step)
joined.sink(KafkaSink(asked("PREFIX") + "out", "bytes", origin=False, time="wall"))
