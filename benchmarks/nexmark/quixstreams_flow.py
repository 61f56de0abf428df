"""The tumbling count in Quix Streams, as its own interpreter runs it: one of two processes."""

from __future__ import annotations

import os
import tempfile
from datetime import timedelta

from quixstreams import Application

SIZE = timedelta(seconds=float(os.environ["SECONDS"]))

with tempfile.TemporaryDirectory() as folder:
    app = Application(
        broker_address=os.environ["BOOTSTRAP"], consumer_group=os.environ["SINK"],
        auto_offset_reset="earliest", state_dir=folder, loglevel="WARNING",
    )  # fmt: skip
    source = app.topic(os.environ["SOURCE"], value_deserializer="json")
    sink = app.topic(os.environ["SINK"], value_serializer="json")
    bids = app.dataframe(source)[["auction"]].group_by("auction")
    # The processes are not equally far, so records of two partitions come out of order.
    windows = bids.tumbling_window(SIZE, grace_ms=SIZE).count()
    counts = windows.final(closing_strategy="partition")
    results = counts.apply(
        lambda count, auction, at, headers: {
            "auction": auction, "num": count["value"], "dateTime": count["end"]
        },
        metadata=True,
    )  # fmt: skip
    results.to_topic(sink)
    app.run()
