"""The operator that keeps a collection up to date: it steps from frontier to frontier.

Guarantees that a step takes all updates between two frontiers of its inputs in one pass, however
many distinct times they have, and that the output has each time's own differences (the differential
dataflow status report, "Poor scaling with small updates"). Times stay in the product order, so
different outer times iterate beside each other. The output of a step leaves in pieces. Invariant:
capabilities cover the waiting updates, unsent output, and the moments at which an output may still
change. No step passes the time of a move before its bins are here (I2).
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Protocol

import numpy as np

from meander.dataflow.collections.arrangement import ArrangementReader
from meander.dataflow.operators.collection.pending import PendingUpdates
from meander.dataflow.operators.collection.stored_updates import StoredUpdates
from meander.dataflow.operators.collection.updates import Codings, least_times
from meander.dataflow.operators.context import OperatorContext
from meander.dataflow.operators.keyed.stateful import StatefulOperator
from meander.dataflow.operators.ports import InFlight, InputPort, OutputPort
from meander.dataflow.records.batch import Batch
from meander.dataflow.records.loop_times import iterations_of, nested_time
from meander.state.checkpoint.arrangements import UnreadRows
from meander.state.collections.columns import Int64s
from meander.state.collections.description import LayerDescription
from meander.state.collections.frontiers import not_before
from meander.state.collections.kernels import hashes_of
from meander.state.collections.layer import UpdateChunk, Updates
from meander.state.keys.ids import Bin
from meander.state.layers.layer_writer import LayerWriter
from meander.state.store.store import Store
from meander.state.times.antichain import Antichain
from meander.state.times.time import MIN_TIME, Time

IDLE_SECONDS = 1.0
"""The time without input after which layers merge all the same."""
IDLE_FUEL = 1 << 14
"""The rows that a turn merges then."""
REWRITE_FUEL = 1 << 12
"""The stored rows that a turn rewrites."""
COLLECT_FUEL = 1 << 12
"""The codes that a step looks at, where the dictionary gives up those that are not in use."""


class CollectionLogic(Protocol):
    """A logic that turns the next layers of its inputs into updates of its output."""

    shared: Mapping[int, ArrangementReader]
    """By input the reader of an arrangement that another operator keeps."""

    @property
    def pending(self) -> tuple[Int64s, Int64s]:
        """Return the keys (n,) and times (n, depth) at which its output may change without
        input."""

    @property
    def has_pending(self) -> bool:
        """Return whether its output may change without input."""

    def start(self, position: Antichain) -> None:
        """Count all updates before a frontier as those of an earlier execution."""

    def step(self, batches: Sequence[Updates], description: LayerDescription) -> Iterator[Updates]:
        """Yield the updates of the output for the next updates of each input, in any order."""

    def take_stored(self) -> list[tuple[int, Updates]]:
        """Return the updates that the arrangements got in the last step, with the number of
        each."""

    def between(self, number: int, first: int, last: int) -> tuple[int, Iterator[Updates]]:
        """Return an outer time, and the updates of an arrangement with hashes from `first` to
        `last`. They tell only later outer times apart."""

    def install(self, number: int, bin: Bin, updates: Updates, at: Antichain) -> None:
        """Add the updates of a bin that is here from a frontier on to an arrangement."""

    def remove(self, first: int, last: int, at: int) -> None:
        """Remove the updates of the keys with hashes from `first` to `last` from all arrangements,
        for readers at or after the outer time `at`."""

    def restore_pending(self, keys: Int64s, times: Int64s) -> None:
        """Add restored moments at which the output may change."""

    @property
    def chunks(self) -> list[list[UpdateChunk]]:
        """Return the chunks of each arrangement, by number."""

    def compact(self, fuel: int) -> bool:
        """Merge up to `fuel` rows; return whether there were any."""


class CollectionOperator(StatefulOperator):
    """An operator with one logic over collections, on one worker."""

    def __init__(
        self,
        context: OperatorContext,
        inputs: Sequence[InputPort],
        unsent: InputPort,
        handoffs: InputPort,
        output: OutputPort,
        logic: CollectionLogic,
        store: Store,
        max_handoff_bytes: int,
        depth: int,
        codings: Codings,
        unread: Iterable[UnreadRows],
    ) -> None:
        """`unsent` gets the output that was not sent before a checkpoint; `depth` is the number of
        coordinates of a time; `unread` are the rows that it had not read at the checkpoint."""
        super().__init__(context, handoffs, [output], store, max_handoff_bytes, lambda _: True)
        self._inputs, self._unsent_input, self._depth = inputs, unsent, depth
        self._logic = logic
        for one in unread:
            self._logic.shared[one.input].restore(one.bin, Antichain(one.times))
        self._codings = codings
        codings.output.dictionary.add_holder(self._codes)
        self._stored = StoredUpdates(
            store, context.space, logic.between, codings.output.dictionary, codings.kept
        )
        self._pending = [PendingUpdates(depth) for _ in inputs]
        self._upper = Antichain.of((MIN_TIME,) * depth if depth > 1 else MIN_TIME)
        self._clock, self._worked_at = context.clock, context.clock.monotonic()
        self._started = False
        """Whether the operator has begun a step."""
        self._moves: list[Antichain] = []
        """The times of moves of bins to and from this worker that no step has reached."""
        self._running: Iterator[Updates] | None = None
        self._unsent = deque[tuple[Time, Batch]]()

    def schedule(self) -> bool:
        """Receive bins and updates, and begin or continue a step; merge where there is none. Return
        whether the operator worked."""
        worked = self.incoming.schedule(self._outputs.retain)
        worked |= self._receive()
        if self._running is None and not self._unsent:
            self._begin()
        if self._running is not None or self._unsent:
            worked |= self._proceed()
        elif not worked:
            return self._is_idle() and self._compact()
        if worked:
            self._worked_at = self._clock.monotonic()
            if self._running is None:
                self._downgrade()
        return worked

    def in_flight(self) -> Iterable[InFlight]:
        """Return the waiting updates, and the unsent output of a step, which ends for that."""
        if self._running is not None:
            for piece in self._running:
                self._unsent += self._codings.output.batches_of(piece)
            self._store_step()
            # The next turn ends the step, and gives up its times.
            self._running = iter(())
        found = [InFlight(self._unsent_input.location, *one) for one in self._unsent]
        parts = zip(self._inputs, self._pending, self._codings.inputs, strict=True)
        for port, pending, coding in parts:
            found += [InFlight(port.location, *one) for one in coding.batches_of(pending.all())]
        return found

    # -- bins that come and go

    @property
    def notifications(self) -> list[tuple[Time, bytes]]:
        """Return the moments at which the output may change, each with its key."""
        keys, times = self._logic.pending
        return [
            (nested_time(time, tuple(iterations)), key.to_bytes(8, "big", signed=True))
            for key, (time, *iterations) in zip(keys.tolist(), times.tolist(), strict=True)
        ]

    @property
    def unread(self) -> list[UnreadRows]:
        """Return where the rows begin that it has not read in arrangements of other operators."""
        found = defaultdict[tuple[int, Bin], Antichain](Antichain)
        for number, reader in self._logic.shared.items():
            for awaited, times in reader.awaited.items():
                found[number, awaited] = times
            for updates in reader.unread():
                bins = self._space.bins_of(hashes_of(updates.keys)).tolist()
                for bin, (time, *iterations) in zip(bins, updates.times.tolist(), strict=True):
                    at, least = (number, Bin(bin)), nested_time(time, tuple(iterations))
                    found[at] = found[at].meet(Antichain.of(least))
        return [UnreadRows(self.name, *at, first.times) for at, first in found.items()]

    def start(self, notifications: Iterable[tuple[Time, bytes]]) -> None:
        """Fill the arrangements with restored bins, and add restored moments."""
        for bin in self.store.bins():
            self._fill(bin, self._upper)
        moments = [(int.from_bytes(key, "big", signed=True), time) for time, key in notifications]
        times = [time if isinstance(time, tuple) else (time,) for _, time in moments]
        self._logic.restore_pending(
            np.array([key for key, _ in moments], np.int64),
            np.array(times, np.int64).reshape(-1, self._depth),
        )
        self._downgrade()

    def order_around_move(self, bin: Bin, time: int) -> None:
        """Do nothing, as updates wait for their time."""

    def start_departure(self, bin: Bin, time: int) -> None:
        """Note the move of a bin from here. Steps end at its time."""
        super().start_departure(bin, time)
        self._end_step_at(time)

    def layer_writer(self, bin: Bin, at: int) -> LayerWriter:
        """Return a layer writer for a bin that leaves at the time `at`. No entry of the bin changes
        any more."""
        writer = super().layer_writer(bin, at)
        self._stored.forget(bin)
        return writer

    def release_bin(self, bin: Bin, at: int) -> Sequence[tuple[int, bytes]]:
        """Release a bin that moves to its new owner, and remove it from the arrangements."""
        self._write_back(bin)
        self._logic.remove(*self._hashes(bin), at)
        self._stored.forget(bin)
        for reader in self._logic.shared.values():
            reader.forget(bin)
        return super().release_bin(bin, at)

    def _write_back(self, bin: Bin | None = None) -> None:
        self._stored.write(bin)

    def _on_installed(self, bin: Bin, time: int) -> None:
        """Add a bin that has moved here to the arrangements. Steps end at the time of its move."""
        # A bin that comes back has its history with it. Readers from before it left may lag.
        self._logic.remove(*self._hashes(bin), MIN_TIME)
        self._fill(bin, self._outer_frontier(time))
        self._end_step_at(time)

    def _fill(self, bin: Bin, at: Antichain) -> None:
        """Add the rows of a bin that is here from a frontier on to the arrangements."""
        for number, updates in self._stored.load(bin).items():
            self._logic.install(number, bin, updates, at)

    def _hashes(self, bin: Bin) -> tuple[int, int]:
        """Return the first and the last hash of a bin."""
        width = 64 - self._space.bits
        return bin << width, ((bin + 1) << width) - 1

    # -- steps

    def _receive(self) -> bool:
        received = False
        parts = zip(self._inputs, self._pending, self._codings.inputs, strict=True)
        for port, pending, coding in parts:
            for message in port.drain():
                received = True
                assert isinstance(message.payload, Batch)
                self._outputs.retain(message)
                iterations = iterations_of(message.time)
                updates = coding.updates_of(message.payload, iterations)
                pending.add(updates, iterations)
                np.add.at(self.heat, self._space.bins_of(hashes_of(updates.keys)), 1)
        for message in self._unsent_input.drain():
            received = True
            assert isinstance(message.payload, Batch)
            self._outputs.retain(message)
            self._unsent.append((message.time, message.payload))
        return received

    def _is_idle(self) -> bool:
        """Return whether nothing has come for long enough to merge without need."""
        return self._clock.monotonic() - self._worked_at >= IDLE_SECONDS

    def _compact(self) -> bool:
        """Use a turn without input to rewrite stored rows, or to merge layers."""
        return self._stored.compact(REWRITE_FUEL) or self._logic.compact(IDLE_FUEL)

    def _codes(self) -> Iterator[Int64s] | None:
        """Return the codes of all updates here, or None amid a step."""
        if self._running is not None:
            return None
        waiting = [pending.all() for pending in self._pending]
        keys, _ = self._logic.pending
        moments = [keys] if self._codings.output.key and len(keys) else []
        kept = zip(self._codings.kept, self._logic.chunks, strict=True)
        return chain(
            moments,
            *(one.codes(some) for one, some in zip(self._codings.inputs, waiting, strict=True)),
            *(coding.codes_of(chunks) for coding, chunks in kept),
        )

    def _begin(self) -> None:
        """Begin a step where the inputs' frontier has passed something that waits."""
        if not (any(self._pending) or self._logic.has_pending):
            return
        upper = self._control()
        for port in self._inputs:
            upper = upper.meet(port.frontier)
        # A join takes rows from its last step on as those of its next batch, and not those that
        # moved here. Beyond a move from here, rows of earlier times in later iterations would find
        # their bin cancelled. So a step ends at each move, even one without updates.
        moves = self._unreached_moves()
        for bound in (*moves, *map(self._outer_frontier, self.incoming.awaited_times)):
            upper = upper.meet(bound)
        if upper == self._upper or not self._upper.dominates(upper):
            return
        some = any(pending.has_before(upper) for pending in self._pending) or upper in moves
        if not some and not_before(self._logic.pending[1], upper).all():
            return
        if not self._started:
            self._start_from(upper.meet(Antichain.of(*self._least_times)))
        self._codings.output.dictionary.collect(COLLECT_FUEL)
        ready = [pending.take(upper) for pending in self._pending]
        self._stored.compact(REWRITE_FUEL)
        description, self._upper = LayerDescription(self._upper, upper, self._upper), upper
        self._running = self._logic.step(ready, description)

    def _unreached_moves(self) -> list[Antichain]:
        """Return the times of moves of bins to and from this worker that no step has reached, as
        frontiers."""
        self._moves = [one for one in self._moves if not one.dominates(self._upper)]
        return self._moves

    def _end_step_at(self, time: int) -> None:
        """Have a step end at the time of a move. All bins of a round have one time."""
        at = self._outer_frontier(time)
        if at not in self._moves:
            self._moves.append(at)

    def _outer_frontier(self, time: int) -> Antichain:
        return Antichain.of(nested_time(time, (0,) * (self._depth - 1)))

    def _start_from(self, position: Antichain) -> None:
        """Take up the position of an earlier execution: updates before it belong to earlier steps,
        and those that wait, or still come, do not."""
        self._started, self._upper = True, position
        self._logic.start(position)

    def _proceed(self) -> bool:
        """Send unsent output or the next piece of a step, or end it. Return whether the output was
        not blocked."""
        if self._outputs.blocked:
            return False
        if not self._unsent:
            assert self._running is not None
            piece = next(self._running, None)
            if piece is None:
                self._running = None
                self._store_step()
                return True
            self._unsent += self._codings.output.batches_of(piece)
        while self._unsent:
            self._outputs.send(*self._unsent.popleft())
        return True

    def _store_step(self) -> None:
        """Store what the arrangements got in a step."""
        for number, updates in self._logic.take_stored():
            self._stored.add(number, updates)

    def _downgrade(self) -> None:
        if self._running is not None:
            return
        unsent = (time for time, _ in self._unsent)
        self._outputs.downgrade(*self.incoming.pending_times, *unsent, *self._least_times)

    @property
    def _least_times(self) -> Iterator[Time]:
        """Yield lower bounds of the times that wait at the inputs, or at which an output may
        change."""
        yield from chain.from_iterable(pending.least_times for pending in self._pending)
        yield from least_times(self._logic.pending[1])
