"""Moves the state of bins: F's control path (live reconfiguration, 2.2; design 4, Migration).

A move of time t becomes known by a command and holds capability t from then on. Once the control
frontier has passed t its bins' old owners are certain; once a stateful operator's output frontier
has reached t, that operator's state is final for t: the old owner sends, under t, where all lies on
the state topic and what little does not; what is much it writes there first, in slices. The copy
stays until the output frontier has passed t: the acknowledgement; until then it can be written
anew. Guarantees I2, I4 and, by fuel, I7. Cost: O(moving bins) per turn.
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
from meander.dataflow.control.reassignment import Moves
from meander.dataflow.control.routing import Routing, Transfer
from meander.dataflow.migration.pre_copy import Preparing
from meander.dataflow.operators.context import OperatorContext
from meander.dataflow.operators.exchange import Exchange
from meander.dataflow.operators.keyed.operator import KeyedOperator
from meander.dataflow.operators.ports import BaseOperator, InputPort, Message, OutputPort, least_of
from meander.dataflow.progress.capability import CapabilitySet
from meander.dataflow.records.loop_times import outer
from meander.schemas.errors import MeanderError
from meander.state.keys.ids import Bin, CheckpointId, member_name
from meander.state.layers.layer_writer import LayerWriter
from meander.state.times.antichain import Antichain
from meander.state.times.time import Time

ENTRIES = 2048
"""Entries extracted per bin and turn."""
REPAIRS = 4
"""Copies written anew side by side."""


@dataclass(slots=True)
class OutgoingBin:
    """One bin of one operator that leaves this worker."""

    transfer: Transfer
    extraction: LayerWriter | None = None


@dataclass(frozen=True, slots=True)
class RetainedBin:
    """What one operator keeps of a bin that has left, until its next owner has it."""

    transfer: Transfer
    timers: Sequence[tuple[int, bytes]]


@dataclass(frozen=True, slots=True)
class BinRewrite:
    """A copy that is written anew."""

    copy: RetainedBin
    time: int
    """When the next owner asked for it."""
    extraction: LayerWriter


class OutgoingState:
    """What one stateful operator still has to give away, and by which right."""

    def __init__(self, keyed: KeyedOperator, output: OutputPort) -> None:
        self.keyed, self.output = keyed, output
        self.held = CapabilitySet()
        self.departures: list[OutgoingBin] = []
        self.copies: list[RetainedBin] = []
        self.repairs: list[BinRewrite] = []

    def keep(self, undecided: int | None) -> None:
        """Hold the least time at which a pointer may still have to be sent."""
        repairs = (repair.time for repair in self.repairs)
        self.held.downgrade(
            *least_of(undecided, *(d.transfer.time for d in self.departures), *repairs)
        )

    @property
    def gone(self) -> set[Bin]:
        """The bins of which only a copy is left."""
        come_back = self.keyed.arrivals.has_come_since
        transfers = (copy.transfer for copy in self.copies)
        return {one.bin for one in transfers if not come_back(one.bin, one.time)}

    @property
    def away(self) -> set[Bin]:
        """The bins that are about to leave, and those of which only a copy is left."""
        leaving = (departure.transfer.bin for departure in self.departures)
        return {*leaving, *(copy.transfer.bin for copy in self.copies)}


class Ordered(Protocol):
    """A sink that keeps a key's results in order where its bin moves."""

    def expect(self, bin: Bin, time: int) -> None:
        """From `time` on a bin's results come here; those of before left elsewhere, or will."""


class Migrator(BaseOperator):
    """The migration side of F on one worker, for all stateful operators of the flow."""

    def __init__(
        self,
        context: OperatorContext,
        control: InputPort,
        outlets: Sequence[OutgoingState],
        routers: Sequence[Exchange],
        routing: Routing,
        groups: ColocationGroups,
        ordered: Mapping[str, Sequence[Ordered]],
    ) -> None:
        """`ordered` are sinks by the group whose bins' results they get."""
        self._me, self._pace = context.me, context.throttle
        self._control, self._outlets, self._ordered = control, outlets, ordered
        self._routers, self._routing, self._groups = routers, routing, groups
        self._by_group = {
            name: [outlet for outlet in outlets if groups.of(outlet.keyed.name) == name]
            for name in groups.names
        }
        self._preparing = {
            name: Preparing(context, [outlet.keyed for outlet in some])
            for name, some in self._by_group.items()
        }
        self.undecided: list[Moves] = []

    def resume(self, moves: Iterable[Moves]) -> None:
        """The flow begins with records in flight around these, which an earlier execution decided.
        The owner of a bin has them all, and keeps those from a move on behind those of before."""
        for one in moves:
            for numbered in one.bins:
                if self._routing.owner(numbered, one.time) == self._me:
                    self._follow(numbered, one.time)

    def _follow(self, numbered: Bin, time: int) -> None:
        group, bin = self._groups.group(numbered), self._groups.own(numbered)
        for sink in self._ordered.get(group, ()):
            sink.expect(bin, time)
        for outlet in self._by_group[group]:
            outlet.keyed.follow(bin, time)

    def schedule(self) -> bool:
        """Learn of moves, decide those whose time is certain, extract, forget."""
        received = self._receive()
        self._pace.yields = any(o.departures or o.keyed.arrivals.expecting for o in self._outlets)
        prepared = [preparing.step() for preparing in self._preparing.values()]
        if not received and self._settled():
            return any(prepared)
        decided = self._decide(self._control.frontier)
        extracted = [self._extract(outlet) for outlet in self._outlets]
        repaired = [self._repair(outlet) for outlet in self._outlets]
        worked = received or decided or any(extracted) or any(repaired)
        if worked:
            self._keep()
        forgotten = self._forget()
        if self._routing.changing:
            self._routing.settle(self._routed())
        return worked or forgotten or any(prepared)

    def wait_seconds(self) -> float | None:
        """Soon, while layers are being written."""
        due = any(self._due(o) or o.repairs or self._acknowledged(o) for o in self._outlets)
        busy = any(preparing.busy for preparing in self._preparing.values())
        return 0.001 if due or busy else None

    def preparing(self, operator: str) -> Preparing:
        """What is prepared of an operator, with those that move with it."""
        return self._preparing[self._groups.of(operator)]

    def freeze(self, at: CheckpointId, unloaded: Sequence[tuple[str, Bin]]) -> None:
        """A checkpoint is to have all bins that are here as they are now, but for those that an
        operator has not loaded yet; what was being written of them is begun anew after that."""
        for preparing in self._preparing.values():
            preparing.restart()
        for outlet in self._outlets:
            for departure in outlet.departures:
                departure.extraction = None
            loading = {bin for name, bin in unloaded if name == outlet.keyed.name}
            outlet.keyed.freeze(at, outlet.gone | loading)

    # -- the steps

    def _settled(self) -> bool:
        """Whether there is nothing to decide, to give away, or to forget."""
        if self.undecided or self._routing.changing:
            return False
        return not any(o.departures or o.copies or o.repairs for o in self._outlets)

    def _receive(self) -> bool:
        received = False
        for message in self._control.drain():
            received = True
            match message.payload:
                case Moves() as moves:
                    self._routing.add(moves)
                    self.undecided.append(moves)
                    for outlet in self._outlets:
                        outlet.held.retain(outlet.output.mint(message))
                case Revoke(command, time):
                    self._routing.revoke(command, time)
                    self.undecided = [
                        m for m in self.undecided if (m.command, m.time) != (command, time)
                    ]
                case StartPreCopy(number, bin):
                    own = self._groups.own(bin)
                    self._preparing[self._groups.group(bin)].begin(number, own)
                case Prefetch() as stage:
                    self._stage(stage, message.time)
                case CancelMove(bin):
                    self._spare(self._groups.group(bin), self._groups.own(bin))
                case Rewrite() as rewrite:
                    self._rewrite(rewrite, message)
        return received

    def _stage(self, stage: Prefetch, time: Time) -> None:
        operator, bin = stage.manifest.operator, stage.manifest.bin
        number = self._groups.number(operator, bin)
        if self._routing.owner(number, outer(time) - 1) == self._me:
            raise MeanderError(
                f"bin {bin} of operator '{operator}'",
                f"{member_name(self._me)} is to fetch it ahead, and has it (I2)",
            )
        self._named(operator).keyed.arrivals.stage(stage, time)

    def _named(self, operator: str) -> OutgoingState:
        return next(outlet for outlet in self._outlets if outlet.keyed.name == operator)

    def _spare(self, group: str, bin: Bin) -> None:
        self._preparing[group].spare(bin)
        for outlet in self._by_group[group]:
            outlet.keyed.arrivals.spare(bin)

    def _rewrite(self, rewrite: Rewrite, message: Message) -> None:
        outlet = self._named(rewrite.operator)
        if rewrite.time is None:
            outlet.keyed.trace.rewrite(rewrite.bin)
            return
        of = rewrite.bin, rewrite.time
        for copy in outlet.copies:
            if (copy.transfer.bin, copy.transfer.time) == of:
                outlet.held.retain(outlet.output.mint(message))
                extraction = outlet.keyed.trace.again(rewrite.bin, rewrite.time, copy.timers)
                assert isinstance(message.time, int)
                outlet.repairs.append(BinRewrite(copy, message.time, extraction))

    def _decide(self, control: Antichain) -> bool:
        certain = [moves for moves in self.undecided if not control.less_equal(moves.time)]
        self.undecided = [moves for moves in self.undecided if control.less_equal(moves.time)]
        for moves in sorted(certain, key=lambda m: (m.time, m.command)):
            for transfer in self._routing.transfers(moves):
                self._begin(transfer)
        return bool(certain)

    def _begin(self, numbered: Transfer) -> None:
        transfer = replace(numbered, bin=self._groups.own(numbered.bin))
        group = self._groups.group(numbered.bin)
        for router in self._routers:
            router.expect(transfer.time)
        if transfer.target == self._me:
            for sink in self._ordered.get(group, ()):
                sink.expect(transfer.bin, transfer.time)
        for outlet in self._by_group[group]:
            if transfer.source == self._me:
                outlet.departures.append(OutgoingBin(transfer))
                outlet.keyed.timers.depart(transfer.bin, transfer.time)
            elif transfer.target == self._me:
                outlet.keyed.arrivals.expect(transfer.bin, transfer.time)

    def _extract(self, outlet: OutgoingState) -> bool:
        worked = False
        for departure in self._pace.hurry(self._due(outlet)):
            if departure.extraction is None:
                # What the checkpoint is to have of it is written first.
                frozen = departure.transfer.bin in outlet.keyed.trace.frozen
                if frozen or not self._pace.due.open:
                    continue
                worked = True
                transfer = departure.transfer
                self.preparing(outlet.keyed.name).done_with(transfer.bin)
                delivery = outlet.keyed.delivery(transfer.bin, transfer.time)
                if delivery is not None:
                    self._hand_over(outlet, departure, delivery)
                    continue
                departure.extraction = self._pace.due.admit(
                    outlet.keyed.extraction(transfer.bin, transfer.time)
                )
            if departure.extraction.step(ENTRIES):
                self._hand_over(outlet, departure, BinHandoff(departure.extraction.manifest))
                worked = True
        return worked

    def _due(self, outlet: OutgoingState) -> list[OutgoingBin]:
        """The bins whose state is final: nothing before their time can still happen to it."""
        if not outlet.departures:
            return []
        frontier = outlet.keyed.frontier
        return [d for d in outlet.departures if not frontier.less_than(d.transfer.time)]

    def _hand_over(
        self, outlet: OutgoingState, departure: OutgoingBin, delivery: BinHandoff
    ) -> None:
        transfer = departure.transfer
        outlet.output.send(
            outlet.held.permitting(transfer.time),
            transfer.time,
            delivery,
            transfer.target,
        )
        outlet.copies.append(RetainedBin(transfer, outlet.keyed.departed(transfer.bin)))
        outlet.departures.remove(departure)

    def _repair(self, outlet: OutgoingState) -> bool:
        some = self._pace.hurry(outlet.repairs[:REPAIRS])
        done = [repair for repair in some if repair.extraction.step(ENTRIES)]
        for repair in done:
            outlet.repairs.remove(repair)
            to, right = repair.copy.transfer.target, outlet.held.permitting(repair.time)
            outlet.output.send(right, repair.time, BinHandoff(repair.extraction.manifest), to)
        return bool(done)

    def _keep(self) -> None:
        undecided = min((moves.time for moves in self.undecided), default=None)
        for outlet in self._outlets:
            outlet.keep(undecided)

    def _forget(self) -> bool:
        """Drop some of the copies whose next owners have all; whether there were any."""
        found = False
        for outlet in self._outlets:
            for copy in self._pace.hurry(self._acknowledged(outlet)):
                found = True
                outlet.copies.remove(copy)
                bin, time = copy.transfer.bin, copy.transfer.time
                if not outlet.keyed.arrivals.has_come_since(bin, time):
                    outlet.keyed.store.drop(bin)
        return found

    def _acknowledged(self, outlet: OutgoingState) -> list[RetainedBin]:
        if not outlet.copies:
            return []
        frontier = outlet.keyed.frontier
        return [c for c in outlet.copies if not frontier.less_equal(c.transfer.time)]

    def _routed(self) -> Antichain:
        passed = self._control.frontier
        for router in self._routers:
            passed = passed.meet(router.frontier)
        for outlet in self._outlets:
            passed = passed.meet(outlet.keyed.frontier)
        return passed
