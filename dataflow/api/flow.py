"""The entry point of the user's API: a module defines a flow once, and `meander run` runs it.

A stream is a value: two uses of it fork it. `key_by` exchanges records by key. The stateful
operators behind it keep the key, and so do map, filter, flat_map and inspect. A chain of stateful
operators on one key therefore needs one exchange.

>>> from meander.dataflow.simulation.in_memory import ListSink, ListSource
>>> flow = Flow("words")
>>> words = flow.source(ListSource([[(1, "dog"), (2, "cat")]]))
>>> counted = words.key_by(lambda w: w).fold("count", lambda: 0, lambda n, w: (n + 1, (w, n + 1)))
>>> counted.sink(ListSink())
>>> [node.name for node in flow.nodes]
['source', 'key_by', 'key_by exchange', 'count', 'sink']
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, get_args, overload

from meander.dataflow.api.builder import Definition
from meander.dataflow.api.checkpointing import ON_COMMAND, Checkpointing
from meander.dataflow.api.dead_letters import DeadLetters
from meander.dataflow.api.in_process import InProcessResult, in_process
from meander.dataflow.api.nodes import Guarantee, MergeNode, Output, SourceNode, group_of
from meander.dataflow.api.stream import KeyedStream, Stream
from meander.dataflow.api.type_names import named_types
from meander.dataflow.interfaces import KeyedSource, SourceSpec
from meander.dataflow.operators.keyed.expiry import expiry_of
from meander.dataflow.operators.retries import OnError
from meander.dataflow.policies.policy import Policy
from meander.schemas.errors import SetupError
from meander.schemas.option_values import checked_number, checked_text, checked_whole
from meander.state.encoding.named_types import NamedTypes
from meander.state.keys.bins import MAX_BITS, BinSpace

if TYPE_CHECKING:
    from meander.dataflow.api.table import Table

MIB = 1 << 20
T = TypeVar("T")


class Flow(Definition):
    """A flow that defines sources, operators and sinks under one name.

    `bins` is the binary logarithm of the number of bins. It stays fixed for all executions of the
    flow.

    `max_inflight` bounds the bytes that each worker has read and the sinks have not passed. None
    stands for 64 MiB, and sources then send at most the bytes that the sinks pass in half a second.

    `max_waiting` bounds the bytes that wait in memory at one operator or sink. Beyond it, records
    go to disk while they wait for their time, for another iteration or for a commit.

    `max_spill` bounds these bytes on the disk of each worker. The encoded results of one
    transaction may take as many bytes again.

    `link_credit` bounds the bytes that a worker has sent and its peer has not consumed, per
    exchange and link. The last message may exceed it.

    `state_memory` bounds the bytes of state that each worker process holds in memory.

    `move_memory` bounds the bytes in memory of bins that are moving.

    `migration_latency` is a time in seconds from the reader until all sinks have passed a record. A
    pre-copy takes less of the workers' time while records need longer.

    `snapshot_interval` is the interval in seconds at which incremental snapshots go to the state
    topic.

    `checkpoints` sets the interval of checkpoints and how many bytes may be in flight in them. The
    next run of the flow starts from the last checkpoint.

    `delivery` decides about results after a restart from a checkpoint. "at_least_once" writes the
    results that follow the checkpoint again. "exactly_once" writes each result once, in
    transactions. Readers with `isolation.level=read_committed` see each result once.

    `transaction_interval` is the least time in seconds between two transactions.

    `control_lead` is a time in seconds. The coordinator closes times of commands that far ahead of
    the records, so it also bounds how long a command waits.

    `policies` propose other execution plans from the metrics of the running flow, in this order.

    `types` names the classes whose objects records, states and keys may contain, besides those that
    formats, and annotations of the flow's functions, name. No other class is ever built from bytes.

    `dead_letters` bounds the dead letters of all workers in a time, such as `DeadLetters(limit=100,
    per=60)`. A flow with more of them fails.
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
        policies: Sequence[Policy] = (),
        types: Sequence[object] = (),
        dead_letters: DeadLetters | None = None,
    ) -> None:
        checked_text("flow", "name", name)
        if not name or not all(c.isascii() and (c.isalnum() or c in "-_") for c in name):
            raise SetupError(f"flow {name!r}", "its name becomes part of topic names",
                             "use letters, digits, '-' and '_' only")  # fmt: skip
        subject = f"flow {name!r}"
        checked_whole(subject, "bins", bins, 0, MAX_BITS)
        if max_inflight is not None:
            checked_whole(subject, "max_inflight", max_inflight, 1, unit="bytes")
        for option, bytes in {
            "max_waiting": max_waiting, "max_spill": max_spill, "link_credit": link_credit,
            "state_memory": state_memory, "move_memory": move_memory,
        }.items():  # fmt: skip
            checked_whole(subject, option, bytes, 1, unit="bytes")
        for option, seconds in {
            "migration_latency": migration_latency, "snapshot_interval": snapshot_interval,
            "transaction_interval": transaction_interval,
        }.items():  # fmt: skip
            checked_number(subject, option, seconds, above=0)
        checked_number(subject, "control_lead", control_lead, 0)
        for option, given, kind, example in (
            ("checkpoints", checkpoints, Checkpointing, "Checkpointing(interval=60)"),
            ("dead_letters", dead_letters, DeadLetters | None, "DeadLetters(limit=100, per=60)"),
            ("policies", policies, Sequence, "a list of policies"),
            ("types", types, Sequence, "a list of classes"),
        ):
            if not isinstance(given, kind):
                raise SetupError(subject, f"its {option} is {given!r}", f"give it {example}")
        if delivery not in get_args(Guarantee):
            raise SetupError(subject, f"its delivery is {delivery!r}",
                             "choose 'at_least_once' or 'exactly_once'")  # fmt: skip
        super().__init__(name, BinSpace(bins), delivery)
        self.max_inflight, self.max_waiting = max_inflight, max_waiting
        self.max_spill, self.link_credit = max_spill, link_credit
        self.state_memory, self.move_memory = state_memory, move_memory
        self.migration_latency = migration_latency
        self.snapshot_interval, self.control_lead = snapshot_interval, control_lead
        self.checkpoints = checkpoints
        self.transaction_interval = transaction_interval
        for policy in policies:
            if not isinstance(policy, Policy):
                raise SetupError(subject, f"its policy {policy!r} is no Policy",
                                 "give it instances of subclasses of Policy")  # fmt: skip
        self.policies, self.dead_letters = (*policies,), dead_letters
        self._types = (*types,)
        self.module = ""
        """The module that defines the flow, where a loader has loaded it."""

    @property
    def named_types(self) -> NamedTypes:
        """Return the classes that the flow names so far. Raise SetupError where two have one name,
        or no form describes one."""
        return named_types(self._types, self.nodes)

    def source(self, spec: SourceSpec[T], name: str = "source") -> Stream[T]:
        """Add a source to the flow, and return the stream of its records."""
        return Stream(self, Output.of(self.add(SourceNode(self.name_for(name), spec))))

    def table(
        self,
        spec: SourceSpec[T],
        name: str = "table",
        *,
        ttl: float | None = None,
        on_error: OnError = "dead_letter",
    ) -> Table[Any, Any]:
        """Add a source of changes to the flow, and return the table of the newest row of each key.

        A record of `KafkaSource` replaces the row of its Kafka key, and a null deletes it. Other
        sources give pairs of a key and a row, or None. With `ttl` a row lives for `ttl` seconds
        of logical time after its last change; its end sends no change.

        >>> from meander import Flow, KafkaSource
        >>> table = Flow("orders").table(KafkaSource("customers"), "customers", ttl=86_400)
        """
        from meander.dataflow.api.table import change_of, table_of

        if isinstance(spec, KeyedSource):
            spec = spec.with_keys()
        changes = self.source(spec, name).map(change_of, name=f"{name} row")
        return table_of(changes, name, on_error, expiry_of(name, ttl, "write"))

    def run(
        self,
        *,
        until_end: bool = False,
        fire_timers: bool = False,
        start: str = "earliest",
        bootstrap: str | None = None,
    ) -> InProcessResult:
        """Run the flow in this process, on one worker without Spark: in a notebook or a script. It
        reads and writes its real topics and files, until Ctrl-C, or with `until_end` until it has
        processed what its sources hold now.

        It takes no checkpoint, so each run starts from the beginning, and writes each result once
        unless it fails. `meander run` does all else. Kafka's address is `bootstrap`, or that of
        `meander.toml`, `MEANDER_BOOTSTRAP` and the local broker.
        """
        return in_process().run(
            self, until_end=until_end, fire_timers=fire_timers, start=start, bootstrap=bootstrap
        )

    @overload
    def merge(self, *streams: KeyedStream[T], name: str = "merge") -> KeyedStream[T]: ...

    @overload
    def merge(self, *streams: Stream[T], name: str = "merge") -> Stream[T]: ...

    def merge(self, *streams: Stream[T], name: str = "merge") -> Stream[T]:
        """Merge streams into one, without state. Either all have keys, which stay, or none has.
        Raises SetupError for other streams.

        >>> from meander import Flow, KafkaSink, KafkaSource
        >>> from meander.testing import TestFlow
        >>> flow = Flow("all_orders")
        >>> web, shop = (flow.source(KafkaSource(topic), topic) for topic in ("web", "shop"))
        >>> flow.merge(web, shop).sink(KafkaSink("orders"))
        >>> with TestFlow(flow) as run:
        ...     run.feed("web", 1, ms=10)
        ...     run.feed("shop", 2, ms=20)
        ...     run.run()
        >>> run.values("orders")
        [1, 2]
        """
        name = self.name_for(name)
        keyed = [isinstance(one, KeyedStream) for one in streams]
        if not streams or not all(isinstance(one, Stream) for one in streams):
            raise SetupError(f"operator {name!r}", f"it is to merge {[*streams]!r}",
                             "give it streams; collections have concat")  # fmt: skip
        if any(keyed) and not all(keyed):
            raise SetupError(f"operator {name!r}",
                             "some of its streams have keys, and others have none",
                             "call key_by on those without keys")  # fmt: skip
        if len({one._at.scope for one in streams}) > 1:
            raise SetupError(f"operator {name!r}", "its streams lie in different scopes",
                             "merge streams of one loop, or streams outside of loops"
                             )  # fmt: skip
        if not all(keyed):
            return Stream(self, Output.of(self.add(MergeNode(name, _places(streams)))))
        group = group_of(streams[0]._at.node)
        placed = (self.exchange_for(one._at, group, "dead_letter") for one in streams)
        return KeyedStream(self, Output.of(self.add(MergeNode(name, tuple(placed)))))


def _places(streams: Iterable[Stream[Any]]) -> tuple[Output, ...]:
    return tuple(one._at for one in streams)
