"""The user's API: a flow of streams, defined once in a module and run by `meander run`.

A stream is a value: using it twice forks it. `key_by` exchanges records by key once; the stateful
operators that follow keep the key, and so do map, filter, flat_map and inspect on a keyed stream,
so that a chain of stateful operators on one key travels once.

>>> from meander.dataflow.simulation.in_memory import ListSink, ListSource
>>> flow = Flow("words")
>>> words = flow.source(ListSource([[(1, "dog"), (2, "cat")]]))
>>> counted = words.key_by(lambda w: w).fold("count", lambda: 0, lambda n, w: (n + 1, (w, n + 1)))
>>> counted.sink(ListSink())
>>> [node.name for node in flow.nodes]
['source', 'key_by', 'key_by exchange', 'count', 'sink']
"""

from __future__ import annotations

from typing import TypeVar, get_args

from meander.dataflow.api.builder import Definition
from meander.dataflow.api.checkpointing import ON_COMMAND, Checkpointing
from meander.dataflow.api.nodes import Guarantee, Output, SourceNode
from meander.dataflow.api.stream import Stream
from meander.dataflow.interfaces import SourceSpec
from meander.schemas.errors import SetupError
from meander.state.keys.bins import BinSpace

MIB = 1 << 20
T = TypeVar("T")


class Flow(Definition):
    """A named dataflow.

    `bins` is the binary logarithm of the number of key bins, fixed for the flow's life.
    `max_inflight` bounds the bytes that each worker has read and the sinks have not passed; None
    stands for 64 MiB, and for no more of them in the flow than what the sinks pass in half a
    second. `max_waiting` bounds what may wait in memory at one operator or sink; records that wait
    for their time, to go round a loop once more, or to be committed, go to disk beyond it, up to
    `max_spill` on each worker. Encoded results of one transaction may take as much there again.
    `link_credit` bounds what is sent from worker to worker and not taken, per exchange and link
    (the last message may go beyond it), `state_memory` the state that each worker's process holds
    in memory, `move_memory` what bins take in memory that are on their way. All are bytes.
    `migration_latency`, in seconds, is how long records may take from the reader until all sinks
    have passed them, while state is moved ahead: where it is more, that takes less of the workers'
    time.
    `snapshot_interval`, in seconds, is how often what has changed is written to the state topic.
    `checkpoints` says how often a checkpoint of all is taken by itself, from which the flow goes on
    when it is run again, and how much may be in flight in it.
    `delivery` says what becomes of results when a flow goes on from a checkpoint: "at_least_once"
    sends anew what came after it; "exactly_once" does not, and so sends in transactions, which are
    at least `transaction_interval` seconds apart. Who reads with `isolation.level=read_committed`
    sees each result once.
    `control_lead`, in seconds, is how far ahead of the data commands are ruled out: the longest a
    command waits, against stashing.
    """

    def __init__(
        self,
        name: str,
        *,
        bins: int = 8,
        max_inflight: int | None = None,
        max_waiting: int = 256 * MIB,
        max_spill: int = 8192 * MIB,
        link_credit: int = 4 * MIB,
        state_memory: int = 256 * MIB,
        move_memory: int = 32 * MIB,
        migration_latency: float = 0.3,
        snapshot_interval: float = 10.0,
        checkpoints: Checkpointing = ON_COMMAND,
        delivery: Guarantee = "at_least_once",
        transaction_interval: float = 0.02,
        control_lead: float = 0.25,
    ) -> None:
        if not name or not all(c.isascii() and (c.isalnum() or c in "-_") for c in name):
            raise SetupError(f"flow {name!r}", "its name becomes part of topic names",
                             "use letters, digits, '-' and '_' only")  # fmt: skip
        bounds = {
            "max_inflight": max_inflight, "max_waiting": max_waiting, "max_spill": max_spill,
            "link_credit": link_credit, "move_memory": move_memory,
        }  # fmt: skip
        for what, bytes in bounds.items():
            if bytes is not None and bytes < 1:
                raise SetupError(f"flow {name!r}", f"its {what} is {bytes}, so nothing could pass",
                                 "give it a number of bytes")  # fmt: skip
        if delivery not in get_args(Guarantee):
            raise SetupError(f"flow {name!r}", f"its delivery is {delivery!r}",
                             "choose 'at_least_once' or 'exactly_once'")  # fmt: skip
        super().__init__(name, BinSpace(bins), delivery)
        self.max_inflight, self.max_waiting = max_inflight, max_waiting
        self.max_spill, self.link_credit = max_spill, link_credit
        self.state_memory, self.move_memory = state_memory, move_memory
        if not migration_latency > 0:
            raise SetupError(f"flow {name!r}", f"its migration_latency is {migration_latency}",
                             "give it a number of seconds, such as 0.3")  # fmt: skip
        self.migration_latency = migration_latency
        if not transaction_interval > 0:
            raise SetupError(f"flow {name!r}",
                             f"its transaction_interval is {transaction_interval}",
                             "give it a number of seconds, such as 0.02")  # fmt: skip
        self.snapshot_interval, self.control_lead = snapshot_interval, control_lead
        self.checkpoints = checkpoints
        self.transaction_interval = transaction_interval

    def source(self, spec: SourceSpec[T], name: str = "source") -> Stream[T]:
        """A stream of what a source reads."""
        return Stream(self, Output.of(self.add(SourceNode(self.name_for(name), spec))))
