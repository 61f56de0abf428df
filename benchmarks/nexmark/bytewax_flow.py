"""The tumbling count in bytewax, as its own interpreter runs it: two processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import bytewax.operators as op
from bytewax.connectors.kafka import KafkaSinkMessage
from bytewax.connectors.kafka import operators as kop
from bytewax.dataflow import Dataflow
from bytewax.operators import windowing as win

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SIZE = timedelta(seconds=float(os.environ["SECONDS"]))
BROKERS = [os.environ["BOOTSTRAP"]]


def bid_of(message: Any) -> tuple[str, datetime]:  # noqa: ANN401 - of bytewax
    bid = json.loads(message.value)
    return str(bid["auction"]), EPOCH + timedelta(milliseconds=bid["dateTime"])


def result_of(counted: tuple[str, tuple[int, int]]) -> Any:  # noqa: ANN401 - of bytewax
    auction, (window, count) = counted
    end = (EPOCH + (window + 1) * SIZE).timestamp() * 1000
    value = {"auction": int(auction), "num": count, "dateTime": round(end)}
    return KafkaSinkMessage(auction.encode(), json.dumps(value).encode())


flow = Dataflow("count")
bids = kop.input("bids", flow, brokers=BROKERS, topics=[os.environ["SOURCE"]], tail=False,
                 batch_size=1000)  # fmt: skip
keyed = op.map("bid", bids.oks, bid_of)
clock = win.EventClock(lambda at: at, wait_for_system_duration=timedelta(0))
windower = win.TumblingWindower(length=SIZE, align_to=EPOCH)
counts = win.fold_window(
    "count", keyed, clock, windower, lambda: 0, lambda count, _: count + 1, lambda a, b: a + b
)
results = op.map("result", counts.down, result_of)
kop.output("results", results, brokers=BROKERS, topic=os.environ["SINK"])

if __name__ == "__main__":
    here = Path(__file__)
    sys.exit(
        subprocess.call(
            [sys.executable, "-m", "bytewax.testing", f"{here}:flow", "-p", os.environ["WORKERS"]]
        )
    )
