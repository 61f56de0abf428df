"""Moves the state of bins: F's control path (live reconfiguration, 2.2; design 4, Migration).

A move of time t becomes known by a command and holds capability t from then on. Once the control
frontier has passed t its bins' old owners are certain; once a stateful operator's output
frontier has reached t, that operator's state is final for t: the old owner writes it to the state
topic in slices and sends, under t, where it lies. The copy stays until the output frontier has
passed t: the acknowledgement. Guarantees I2, I4 and, by fuel, I7. Cost: O(moving bins) per turn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dataflow.capability import Held
from dataflow.migrate.moves import Moves
from dataflow.migrate.routing import Routing, Transfer
from dataflow.operators.base import InputPort, OutputPort, Quiet, least_of
from dataflow.operators.keyed import Keyed
from dataflow.operators.router import Router
from state.antichain import Antichain
from state.ids import LayerId, WorkerId
from state.layer import Extraction

ENTRIES = 2048
"""Entries extracted per bin and turn."""
AT_ONCE = 8
"""Bins of one operator extracted side by side, so that writing one overlaps reading another."""


@dataclass(slots=True)
class Departure:
    """One bin of one operator that leaves this worker."""

    transfer: Transfer
    extraction: Extraction | None = None


class Outlet:
    """What one stateful operator still has to give away, and by which right."""

    def __init__(self, keyed: Keyed, output: OutputPort) -> None:
        self.keyed, self.output = keyed, output
        self.held = Held()
        self.departures: list[Departure] = []
        self.copies: list[Transfer] = []

    def keep(self, undecided: int | None) -> None:
        """Hold the least time at which a pointer may still have to be sent."""
        self.held.keep(*least_of(undecided, *(d.transfer.time for d in self.departures)))


class Migrator(Quiet):
    """The migration side of F on one worker, for all stateful operators of the flow."""

    def __init__(
        self,
        me: WorkerId,
        control: InputPort,
        outlets: Sequence[Outlet],
        routers: Sequence[Router],
        routing: Routing,
        next_layer: Callable[[], LayerId],
    ) -> None:
        self._me, self._control, self._outlets = me, control, outlets
        self._routers, self._routing, self._next_layer = routers, routing, next_layer
        self.undecided: list[Moves] = []

    def schedule(self) -> bool:
        """Learn of moves, decide those whose time is certain, extract, forget."""
        received = self._receive()
        if not received and self._settled():
            return False
        decided = self._decide(self._control.frontier)
        extracted = [self._extract(outlet) for outlet in self._outlets]
        if received or decided or any(extracted):
            self._keep()
        self._forget()
        self._routing.settle(self._routed())
        return received or decided or any(extracted)

    def wait_seconds(self) -> float | None:
        """Soon, while layers are being written."""
        return 0.001 if any(self._due(outlet) for outlet in self._outlets) else None

    # -- the steps

    def _settled(self) -> bool:
        """Whether there is nothing to decide, to give away, or to forget."""
        if self.undecided or self._routing.changing:
            return False
        return not any(outlet.departures or outlet.copies for outlet in self._outlets)

    def _receive(self) -> bool:
        received = False
        for message in self._control.drain():
            received = True
            assert isinstance(message.payload, Moves)
            self._routing.add(message.payload)
            self.undecided.append(message.payload)
            for outlet in self._outlets:
                outlet.held.retain(outlet.output.mint(message))
        return received

    def _decide(self, control: Antichain) -> bool:
        certain = [moves for moves in self.undecided if not control.less_equal(moves.time)]
        self.undecided = [moves for moves in self.undecided if control.less_equal(moves.time)]
        for moves in sorted(certain, key=lambda m: (m.time, m.command)):
            for transfer in self._routing.transfers(moves):
                self._begin(transfer)
        return bool(certain)

    def _begin(self, transfer: Transfer) -> None:
        for outlet in self._outlets:
            if transfer.source == self._me:
                outlet.departures.append(Departure(transfer))
                outlet.keyed.timers.depart(transfer.bin, transfer.time)
            elif transfer.target == self._me:
                outlet.keyed.arrivals.expect(transfer.bin, transfer.time)

    def _extract(self, outlet: Outlet) -> bool:
        worked = False
        for departure in self._due(outlet):
            if departure.extraction is None:
                transfer = departure.transfer
                departure.extraction = outlet.keyed.extraction(
                    self._next_layer(), transfer.bin, transfer.time
                )
                worked = True
            if departure.extraction.step(ENTRIES):
                self._hand_over(outlet, departure, departure.extraction)
                worked = True
        return worked

    def _due(self, outlet: Outlet) -> list[Departure]:
        """The bins whose state is final: nothing before their time can still happen to it."""
        frontier = outlet.keyed.frontier
        final = [d for d in outlet.departures if not frontier.less_than(d.transfer.time)]
        return final[:AT_ONCE]

    def _hand_over(self, outlet: Outlet, departure: Departure, extraction: Extraction) -> None:
        transfer = departure.transfer
        outlet.output.send(
            outlet.held.permitting(transfer.time),
            transfer.time,
            extraction.manifest,
            transfer.target,
        )
        outlet.keyed.departed(transfer.bin)
        outlet.departures.remove(departure)
        outlet.copies.append(transfer)

    def _keep(self) -> None:
        undecided = min((moves.time for moves in self.undecided), default=None)
        for outlet in self._outlets:
            outlet.keep(undecided)

    def _forget(self) -> None:
        for outlet in self._outlets:
            frontier = outlet.keyed.frontier
            gone = [t for t in outlet.copies if not frontier.less_equal(t.time)]
            for transfer in gone:
                outlet.copies.remove(transfer)
                if not outlet.keyed.arrivals.has_come_since(transfer.bin, transfer.time):
                    outlet.keyed.store.drop(transfer.bin)

    def _routed(self) -> Antichain:
        passed = self._control.frontier
        for router in self._routers:
            passed = passed.meet(router.frontier)
        for outlet in self._outlets:
            passed = passed.meet(outlet.keyed.frontier)
        return passed
