"""The migrator moves bins away from one worker (live reconfiguration, 2.2; design 4, Migration).

A command announces a move of time t, and the migrator holds a capability for t from then on. Once
the control frontier has passed t, the old owners are certain. Once an operator's output frontier
has reached t, its state is final for t. Then the old owner sends the manifest and a small delta
under t; a large delta goes to the state topic first, in slices. The retained bin stays until the
output frontier has passed t, the acknowledgement; until then it can be written again. Guarantees
I2, I4 and, by slices, I7. Cost: O(moving bins) per turn.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from meander.dataflow.control.bin_handoff import BinHandoff
from meander.dataflow.control.colocation import ColocationGroups
from meander.dataflow.control.instructions import (
    CancelMove,
    Prefetch,
    Revoke,
    Rewrite,
    StartPreCopy,
)
from meander.dataflow.control.logic_change import LogicChange, PrepareLogic
from meander.dataflow.control.reassignment import Moves
from meander.dataflow.control.routing import Routing, Transfer
from meander.dataflow.logic.worker_logics import WorkerLogics
from meander.dataflow.migration.pre_copy import PreCopyWriter
from meander.dataflow.operators.context import OperatorContext
from meander.dataflow.operators.exchange import Exchange
from meander.dataflow.operators.keyed.stateful import StatefulOperator
from meander.dataflow.operators.ports import BaseOperator, InputPort, Message, OutputPort, least_of
from meander.dataflow.progress.capability import CapabilitySet
from meander.dataflow.records.loop_times import outer_time
from meander.schemas.errors import MeanderError
from meander.state.keys.ids import Bin, CheckpointId, member_name
from meander.state.layers.layer_writer import LayerWriter
from meander.state.times.antichain import Antichain
from meander.state.times.time import Time

ENTRIES = 2048
"""The entries written per bin and turn."""
REWRITES = 4
"""The retained bins that are written again concurrently."""


@dataclass(slots=True)
class OutgoingBin:
    """One operator's part of a bin that leaves this worker."""

    transfer: Transfer
    writer: LayerWriter | None = None


@dataclass(frozen=True, slots=True)
class RetainedBin:
    """One operator's part of a bin that has left, retained until the next owner has installed
    it."""

    transfer: Transfer
    timers: Sequence[tuple[int, bytes]]


@dataclass(frozen=True, slots=True)
class BinRewrite:
    """A retained bin that is written again."""

    bin: RetainedBin
    time: int
    """The time of the next owner's request."""
    writer: LayerWriter


class OutgoingState:
    """One stateful operator's outgoing bins, with the capabilities to send them."""

    def __init__(self, keyed: StatefulOperator, output: OutputPort) -> None:
        self.keyed, self.output = keyed, output
        self.capabilities = CapabilitySet()
        self.leaving: list[OutgoingBin] = []
        self.retained: list[RetainedBin] = []
        self.rewrites: list[BinRewrite] = []

    def downgrade(self, undecided: int | None) -> None:
        """Hold the least time at which a bin may still have to be sent."""
        rewrites = (rewrite.time for rewrite in self.rewrites)
        self.capabilities.downgrade(
            *least_of(undecided, *(d.transfer.time for d in self.leaving), *rewrites)
        )

    @property
    def left_bins(self) -> set[Bin]:
        """The bins that have left and are only retained."""
        come_back = self.keyed.incoming.has_newer
        transfers = (retained.transfer for retained in self.retained)
        return {one.bin for one in transfers if not come_back(one.bin, one.time)}

    @property
    def moving_bins(self) -> set[Bin]:
        """The bins that leave or are only retained."""
        leaving = (leaving_bin.transfer.bin for leaving_bin in self.leaving)
        return {*leaving, *(retained.transfer.bin for retained in self.retained)}


class Ordered(Protocol):
    """A sink that keeps the results of a key in order when its bin moves."""

    def expect(self, bin: Bin, time: int) -> None:
        """Expect the results of a bin from `time` on; earlier results leave at another worker."""


class Migrator(BaseOperator):
    """An operator that moves bins of all stateful operators away from one worker."""

    def __init__(
        self,
        context: OperatorContext,
        control: InputPort,
        outgoing: Sequence[OutgoingState],
        exchanges: Sequence[Exchange],
        routing: Routing,
        groups: ColocationGroups,
        ordered: Mapping[str, Sequence[Ordered]],
        logics: WorkerLogics,
    ) -> None:
        """`ordered` maps each colocation group to the sinks that receive its results."""
        self._logics = logics
        self._me, self._throttle = context.me, context.throttle
        self._control, self._outgoing, self._ordered = control, outgoing, ordered
        self._exchanges, self._routing, self._groups = exchanges, routing, groups
        self._by_group = {
            name: [one for one in outgoing if groups.group_of(one.keyed.name) == name]
            for name in groups.names
        }
        self._pre_copies = {
            name: PreCopyWriter(context, [outgoing.keyed for outgoing in some])
            for name, some in self._by_group.items()
        }
        self.undecided: list[Moves] = []

    def resume(self, moves: Iterable[Moves]) -> None:
        """Restore the order of in-flight records around moves of an earlier execution.

        The owner of a bin has all of its records. It processes those from a move on after earlier
        ones.
        """
        for one in moves:
            for numbered in one.bins:
                if self._routing.owner(numbered, one.time) == self._me:
                    self._follow(numbered, one.time)

    def _follow(self, numbered: Bin, time: int) -> None:
        group, bin = self._groups.group_of_bin(numbered), self._groups.local_bin(numbered)
        for sink in self._ordered.get(group, ()):
            sink.expect(bin, time)
        for outgoing in self._by_group[group]:
            outgoing.keyed.order_around_move(bin, time)

    def schedule(self) -> bool:
        """Receive moves, decide those whose time is certain, write outgoing bins, and drop retained
        bins."""
        received = self._receive()
        self._throttle.bins_in_transit = any(
            o.leaving or o.keyed.incoming.expecting for o in self._outgoing
        )
        prepared = [pre_copy.step() for pre_copy in self._pre_copies.values()]
        if not received and self._is_idle():
            return any(prepared)
        decided = self._decide(self._control.frontier)
        written = [self._write(outgoing) for outgoing in self._outgoing]
        rewritten = [self._step_rewrites(outgoing) for outgoing in self._outgoing]
        worked = received or decided or any(written) or any(rewritten)
        if worked:
            self._downgrade()
        dropped = self._drop_acknowledged()
        if self._routing.has_pending:
            self._routing.compact(self._routed())
        return worked or dropped or any(prepared)

    def wait_seconds(self) -> float | None:
        """Return a short time while layers are being written, else None."""
        due = any(self._due(o) or o.rewrites or self._acknowledged(o) for o in self._outgoing)
        busy = any(pre_copy.busy for pre_copy in self._pre_copies.values())
        return 0.001 if due or busy else None

    def pre_copies(self, operator: str) -> PreCopyWriter:
        """Return the pre-copies of an operator and of those that move with it."""
        return self._pre_copies[self._groups.group_of(operator)]

    def freeze(self, at: CheckpointId, unloaded: Sequence[tuple[str, Bin]]) -> None:
        """Freeze all installed bins for a checkpoint; what was being written of them starts again.

        Bins that an operator has not loaded yet are left out.
        """
        for pre_copy in self._pre_copies.values():
            pre_copy.restart()
        for outgoing in self._outgoing:
            for leaving_bin in outgoing.leaving:
                leaving_bin.writer = None
            loading = {bin for name, bin in unloaded if name == outgoing.keyed.name}
            outgoing.keyed.freeze(at, outgoing.left_bins | loading)

    # -- the steps

    def _is_idle(self) -> bool:
        """Return whether there is no bin to decide on, to send, or to drop."""
        if self.undecided or self._routing.has_pending:
            return False
        return not any(o.leaving or o.retained or o.rewrites for o in self._outgoing)

    def _receive(self) -> bool:
        received = False
        for message in self._control.drain():
            received = True
            match message.payload:
                case Moves() as moves:
                    self._routing.add(moves)
                    self.undecided.append(moves)
                    for outgoing in self._outgoing:
                        outgoing.capabilities.retain(outgoing.output.mint(message))
                case Revoke(command, time):
                    self._routing.revoke(command, time)
                    self.undecided = [
                        m for m in self.undecided if (m.command, m.time) != (command, time)
                    ]
                case StartPreCopy(number, bin):
                    own = self._groups.local_bin(bin)
                    self._pre_copies[self._groups.group_of_bin(bin)].start(number, own)
                case Prefetch() as prefetch:
                    self._prefetch(prefetch, message.time)
                case CancelMove(bin):
                    self._cancel_move(self._groups.group_of_bin(bin), self._groups.local_bin(bin))
                case Rewrite() as rewrite:
                    self._rewrite(rewrite, message)
                case PrepareLogic() | LogicChange() as logic:
                    self._logics.receive(logic)
        return received

    def _prefetch(self, prefetch: Prefetch, time: Time) -> None:
        operator, bin = prefetch.manifest.operator, prefetch.manifest.bin
        number = self._groups.number(operator, bin)
        if self._routing.owner(number, outer_time(time) - 1) == self._me:
            raise MeanderError(
                f"bin {bin} of operator '{operator}'",
                f"{member_name(self._me)} has to prefetch it, but owns it (I2)",
            )
        self._outgoing_of(operator).keyed.incoming.start_prefetch(prefetch, time)

    def _outgoing_of(self, operator: str) -> OutgoingState:
        return next(outgoing for outgoing in self._outgoing if outgoing.keyed.name == operator)

    def _cancel_move(self, group: str, bin: Bin) -> None:
        self._pre_copies[group].cancel(bin)
        for outgoing in self._by_group[group]:
            outgoing.keyed.incoming.cancel_prefetch(bin)

    def _rewrite(self, rewrite: Rewrite, message: Message) -> None:
        outgoing = self._outgoing_of(rewrite.operator)
        if rewrite.time is None:
            outgoing.keyed.bin_layers.schedule_rewrite(rewrite.bin)
            return
        of = rewrite.bin, rewrite.time
        for retained in outgoing.retained:
            if (retained.transfer.bin, retained.transfer.time) == of:
                outgoing.capabilities.retain(outgoing.output.mint(message))
                writer = outgoing.keyed.bin_layers.rewrite_retained(
                    rewrite.bin, rewrite.time, retained.timers
                )
                assert isinstance(message.time, int)
                outgoing.rewrites.append(BinRewrite(retained, message.time, writer))

    def _decide(self, control: Antichain) -> bool:
        certain = [moves for moves in self.undecided if not control.less_equal(moves.time)]
        self.undecided = [moves for moves in self.undecided if control.less_equal(moves.time)]
        for moves in sorted(certain, key=lambda m: (m.time, m.command)):
            for transfer in self._routing.transfers(moves):
                self._start(transfer)
        return bool(certain)

    def _start(self, numbered: Transfer) -> None:
        transfer = replace(numbered, bin=self._groups.local_bin(numbered.bin))
        group = self._groups.group_of_bin(numbered.bin)
        for exchange in self._exchanges:
            exchange.note_move(transfer.time)
        if transfer.target == self._me:
            for sink in self._ordered.get(group, ()):
                sink.expect(transfer.bin, transfer.time)
        for outgoing in self._by_group[group]:
            if transfer.source == self._me:
                outgoing.leaving.append(OutgoingBin(transfer))
                outgoing.keyed.start_departure(transfer.bin, transfer.time)
            elif transfer.target == self._me:
                outgoing.keyed.incoming.expect(transfer.bin, transfer.time)

    def _write(self, outgoing: OutgoingState) -> bool:
        worked = False
        for leaving_bin in self._throttle.run_due(self._due(outgoing)):
            if leaving_bin.writer is None:
                # The checkpoint writes its layer of the bin first.
                frozen = leaving_bin.transfer.bin in outgoing.keyed.bin_layers.frozen
                if frozen or not self._throttle.move_memory.open:
                    continue
                worked = True
                transfer = leaving_bin.transfer
                self.pre_copies(outgoing.keyed.name).finish(transfer.bin)
                handoff = outgoing.keyed.bin_handoff(transfer.bin, transfer.time)
                if handoff is not None:
                    self._send_handoff(outgoing, leaving_bin, handoff)
                    continue
                leaving_bin.writer = self._throttle.move_memory.admit(
                    outgoing.keyed.layer_writer(transfer.bin, transfer.time)
                )
            if leaving_bin.writer.step(ENTRIES):
                self._send_handoff(outgoing, leaving_bin, BinHandoff(leaving_bin.writer.manifest))
                worked = True
        return worked

    def _due(self, outgoing: OutgoingState) -> list[OutgoingBin]:
        """Return the bins whose state is final, since nothing before their time can still
        happen."""
        if not outgoing.leaving:
            return []
        frontier = outgoing.keyed.frontier
        return [d for d in outgoing.leaving if not frontier.less_than(d.transfer.time)]

    def _send_handoff(
        self, outgoing: OutgoingState, leaving_bin: OutgoingBin, handoff: BinHandoff
    ) -> None:
        transfer = leaving_bin.transfer
        outgoing.output.send(
            outgoing.capabilities.capability_for(transfer.time),
            transfer.time,
            handoff,
            transfer.target,
        )
        timers = outgoing.keyed.release_bin(transfer.bin, transfer.time)
        outgoing.retained.append(RetainedBin(transfer, timers))
        outgoing.leaving.remove(leaving_bin)

    def _step_rewrites(self, outgoing: OutgoingState) -> bool:
        some = self._throttle.run_due(outgoing.rewrites[:REWRITES])
        done = [rewrite for rewrite in some if rewrite.writer.step(ENTRIES)]
        for rewrite in done:
            outgoing.rewrites.remove(rewrite)
            to, capability = (
                rewrite.bin.transfer.target,
                outgoing.capabilities.capability_for(rewrite.time),
            )
            outgoing.output.send(capability, rewrite.time, BinHandoff(rewrite.writer.manifest), to)
        return bool(done)

    def _downgrade(self) -> None:
        undecided = min((moves.time for moves in self.undecided), default=None)
        for outgoing in self._outgoing:
            outgoing.downgrade(undecided)

    def _drop_acknowledged(self) -> bool:
        """Drop some retained bins that their next owners have installed; return whether there were
        any."""
        found = False
        for outgoing in self._outgoing:
            for retained in self._throttle.run_due(self._acknowledged(outgoing)):
                found = True
                outgoing.retained.remove(retained)
                bin, time = retained.transfer.bin, retained.transfer.time
                if not outgoing.keyed.incoming.has_newer(bin, time):
                    outgoing.keyed.store.drop(bin)
        return found

    def _acknowledged(self, outgoing: OutgoingState) -> list[RetainedBin]:
        if not outgoing.retained:
            return []
        frontier = outgoing.keyed.frontier
        return [c for c in outgoing.retained if not frontier.less_equal(c.transfer.time)]

    def _routed(self) -> Antichain:
        passed = self._control.frontier
        for exchange in self._exchanges:
            passed = passed.meet(exchange.frontier)
        for outgoing in self._outgoing:
            passed = passed.meet(outgoing.keyed.frontier)
        return passed
