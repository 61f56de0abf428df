"""Flows that start with a state for each key.

A bootstrap writes states once for each number of keys and of bins, and every flow of that size
starts from them. Flows that change their plan get states of their own, because a change of the plan
outlives its execution.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks import load, running
from benchmarks.running import MEANDER, MODULE, PARTITIONS, Running

ROWS = 1_000_000
"""Of the table, that are made at a time."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A flow whose states are there."""

    flow: Running
    source: str
    """The topic it reads."""
    figures: Mapping[str, float]
    """How fast the states were written, and how long the workers took to load them."""


@dataclass(slots=True)
class States:
    """Those that have been written on one broker."""

    bootstrap: str
    module: Path = MODULE
    """The flow, whose `operator` has them."""
    operator: str = "count"
    reused: bool = True
    """Whether flows of one size start from the same states."""
    _written: dict[tuple[int, str, int], tuple[str, float]] = field(default_factory=dict)
    """The prefix of their topics, and keys per second, by keys, bins and partitions."""

    @contextmanager
    def flow(
        self,
        keys: int,
        bench: Mapping[str, str],
        workers: int = running.WORKERS,
        *,
        room: int = 0,
        backlog: int = 0,
        master: str | None = None,
    ) -> Iterator[Loaded]:
        """Yield a flow with a state for each of `keys` keys while the block lasts. Its topic has
        `backlog` records before the flow starts."""
        partitions = max(PARTITIONS, workers)
        size = keys, bench.get("BINS", ""), partitions
        if size not in self._written:
            self._written[size] = self._write(keys, bench, partitions)
        prefix, speed = self._written[size]
        source = _source(prefix)
        if backlog:
            load.fill(self.bootstrap, source, backlog, keys)
        with running.flow(
            self.bootstrap, source, bench, workers=workers, room=room, partitions=partitions,
            prefix=prefix, module=self.module, master=master,
        ) as flow:  # fmt: skip
            began = time.monotonic()
            # What is answered has found the states in their place.
            load.write(self.bootstrap, source, ((load.name(n), 0) for n in range(partitions)))
            flow.until_results(partitions)
            seconds = time.monotonic() - began
            yield Loaded(flow, source, {
                "bootstrap_keys_per_s": speed, "load_s": seconds,
                "load_keys_per_s": keys / seconds,
            })  # fmt: skip
        if self.reused:
            load.empty(self.bootstrap, source)
        else:
            del self._written[size]
            load.delete(self.bootstrap, prefix)

    def _write(self, keys: int, bench: Mapping[str, str], partitions: int) -> tuple[str, float]:
        prefix = f"state-{uuid4().hex[:8]}."
        user = {**bench, "PREFIX": prefix, "SOURCE": _source(prefix)}
        load.create(self.bootstrap, _source(prefix), partitions=partitions)
        load.create(self.bootstrap, f"{prefix}out", partitions=1)
        with tempfile.TemporaryDirectory() as folder:
            table = Path(folder) / "states.parquet"
            write(table, keys)
            words = ["bootstrap", str(self.module), "--operator", self.operator,
                     "--data", str(table), "--prefix", prefix, "--json"]  # fmt: skip
            told = subprocess.run(
                [MEANDER, *words], env=running.environment(self.bootstrap, user),
                check=True, stdout=subprocess.PIPE, text=True,
            )  # fmt: skip
        written = json.loads(told.stdout.splitlines()[-1])
        assert written["keys"] == keys, written
        return prefix, keys / written["seconds"]


def _source(prefix: str) -> str:
    """The topic that flows read: who starts from a checkpoint has to read the same as before."""
    return f"{prefix}in"


def write(path: Path, keys: int) -> None:
    """A table of keys, each with a state that has counted nothing yet."""
    schema = pa.schema([("key", pa.binary()), ("state", pa.int64())])
    with pq.ParquetWriter(path, schema) as writer:
        for first in range(0, keys, ROWS):
            names = [load.name(number) for number in range(first, min(first + ROWS, keys))]
            columns = [pa.array(names, pa.binary()), pa.array(np.zeros(len(names), np.int64))]
            writer.write_table(pa.Table.from_arrays(columns, schema=schema))
