"""The coordinator's part of migrations: it prepares bins, gives rounds their times, counts.

Guarantees that every command accepted comes to an end, that a bin is in one round at a time of each
command, and that what is prepared is moved or spared. Rounds of one command follow each other;
commands without a time that name the same bins do too, others run side by side. Only bins whose
last round is over are prepared, at most as many at once as `move_memory` has room for (I6).
Cost: O(bins under way) per turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial

from meander.dataflow.control.colocation import ColocationGroups
from meander.dataflow.control.command import MoveBins, Refused, used_before
from meander.dataflow.control.decisions import PendingDecisions
from meander.dataflow.control.instructions import Instruction, Revoke, Rewrite
from meander.dataflow.control.reassignment import Moves
from meander.dataflow.control.routing import Routing
from meander.dataflow.interfaces import Clock
from meander.dataflow.migration import events
from meander.dataflow.migration.bin_selector import PER_PAIR, BinSelector
from meander.dataflow.migration.bin_stats import Sizes
from meander.dataflow.migration.estimate import MigrationEstimate, TransferRate
from meander.dataflow.migration.events import Event
from meander.dataflow.migration.pre_copy_tracker import Fetching
from meander.dataflow.migration.rounds import BinInTransit, BinMove, Part, Round, RunningMigration
from meander.dataflow.progress.capability import Capability
from meander.state.keys.ids import Bin, WorkerId

BETWEEN = 0.2
"""Of the lead, while bins that are prepared move round after round."""


class MigrationScheduler:
    """All commands that move bins. Within, bins have their numbers among all groups'."""

    def __init__(
        self,
        groups: ColocationGroups,
        routing: Routing,
        decisions: PendingDecisions,
        clock: Clock,
        most_bytes: int,
        tell: Callable[[WorkerId, Instruction], None],
        tell_all: Callable[[Moves | Revoke], None],
        demand: Callable[[int], Capability],
        near: Callable[[int], bool],
    ) -> None:
        self._groups, self._routing, self._decisions = groups, routing, decisions
        self._clock, self._tell, self._tell_all, self._demand = clock, tell, tell_all, demand
        self._near = near
        self.ids: set[str] = set()
        self.running: list[RunningMigration] = []
        self._queued: list[RunningMigration] = []
        self._taken: set[tuple[int, Bin]] = set()
        self.sizes, self._speed = Sizes(), TransferRate()
        self._choice = BinSelector(groups, routing, self.sizes)
        self.fetching = Fetching(self.running, groups, self.sizes, most_bytes, tell)
        self._events: list[Event] = []

    # -- what is asked

    def submit(self, command: MoveBins, forsworn: int) -> None:
        """Begin a command, or have it wait. Raises Refused."""
        self._choice.now = forsworn
        running = RunningMigration(command, self._clock.monotonic(), self._choice.bins_of(command))
        if command.overlap == "reject":
            self._expect_apart(running)
        before = self._before(running, forsworn)
        self.ids.add(command.id)
        if before:
            self._queued.append(running)
            self._say(events.queued(running, [one.command.id for one in before]))
        else:
            self._start(running, forsworn)

    def _expect_apart(self, running: RunningMigration) -> None:
        for one in self.commands:
            if running.named.isdisjoint(one.named):
                continue
            bin = self._groups.own(min(one.named & running.named))
            raise Refused(
                f"bin {bin} is moved by command {one.command.id!r}: wait for its end, abort it, or"
                " let this one queue"
            )

    def abort(self, id: str, by: str, forsworn: int | None) -> None:
        """End a command once what moves just now has moved. Raises Refused."""
        if by in self.ids:
            raise used_before(by)
        running = next((one for one in self.commands if one.command.id == id), None)
        if running is None or running.aborted is not None:
            known = ", ".join(repr(one.command.id) for one in self.commands)
            raise Refused(f"command {id!r} moves nothing: under way are {known or 'none'}")
        if running.command.staffing:
            raise Refused(f"command {id!r} serves workers that come or go, and has to be completed")
        self.ids.add(by)
        running.aborted = by
        for bin in list(running.fetches):
            if bin in running.waiting:
                self.fetching.call_off(running, bin)
        for round in running.rounds:
            if forsworn is not None and not round.decided and round.time >= forsworn:
                self._revoke(running, round)
        if running in self._queued:
            self._queued.remove(running)
            self.running.append(running)

    def taken(self, command: MoveBins, time: int) -> Bin | None:
        """A bin that a command would move at a time at which another moves it."""
        bins = self._choice.bins_of(command)
        first = bins[:1] if command.strategy == "fluid" else bins
        return next((self._groups.own(bin) for bin in first if (time, bin) in self._taken), None)

    def plan(self, command: MoveBins) -> MigrationEstimate:
        """What a command would do now."""
        sizes = {self._groups.own(bin): self.sizes.of(bin) for bin in self._choice.bins_of(command)}
        return MigrationEstimate(self._choice.rounds(command), sizes, self._speed.bytes_per_second)

    # -- what the workers report

    def bin_unreadable(
        self, operator: str, bin: Bin, number: int | None, time: int | None, reason: str
    ) -> None:
        """Layers cannot be read: ahead of a move, or at its time."""
        numbered = self._groups.number(operator, bin)
        if time is not None:
            for round in self.rounds():
                if round.time == time and (transit := round.awaited.get(numbered)) is not None:
                    self._tell(transit.way.source, Rewrite(operator, bin, time))
                    self._say(
                        events.bin_unreadable(
                            round.command, bin, operator, reason, kept_in_place=False
                        )
                    )
            return
        for running in self.fetching.bin_unreadable(number, operator, bin):
            kept_in_place = numbered in running.waiting and not running.command.staffing
            if kept_in_place:
                running.waiting.remove(numbered)
                running.stuck[numbered] = reason
            elif numbered in running.waiting:
                # It has to go: out of the state itself, at its time.
                running.there.add(numbered)
            self._say(
                events.bin_unreadable(running.command.id, bin, operator, reason, kept_in_place)
            )

    def installed(self, part: Part) -> None:
        """An operator has a part of a bin."""
        part = replace(part, bin=self._groups.number(part.operator, Bin(part.bin)))
        self.sizes.note(part.operator, Bin(part.bin), part.bytes)
        for running in self.running:
            for round in running.rounds:
                if (moved := round.install(part)) is not None:
                    running.count(moved)
                    seconds = self._clock.monotonic() - round.begun
                    self._say(events.bin_moved(round, moved, seconds))

    # -- the steps of a turn

    def step(
        self,
        forsworn: int | None,
        passed: Callable[[int], bool],
        over: Callable[[int], bool],
    ) -> None:
        """`passed` says whether nothing more is decided for a time, `over` whether every stateful
        operator is past it."""
        if forsworn is not None:
            self._choice.now = forsworn
        self._decide(passed)
        self._press()
        for running in list(self.running):
            running.look(self._clock.monotonic())
            self._end_rounds(running, over)
            if running.aborted is not None:
                self._drop_waiting(running)
            elif forsworn is not None:
                self._leave_out(running)
                self._put_off(running)
                self._prepare(running)
                self._go_on(running, forsworn)
            if not running.rounds and (not running.waiting or forsworn is None):
                self._complete(running)
        for running in list(self._queued):
            if forsworn is None:
                self._queued.remove(running)
                self._say_completed(running)
            elif not self._before(running, forsworn):
                self._queued.remove(running)
                self._start(running, forsworn)

    def _start(self, running: RunningMigration, forsworn: int) -> None:
        self.running.append(running)
        command = running.command
        # Which are hot has changed while it waited.
        running.waiting = self._choice.bins_of(command)
        at = command.time
        if at is not None or not command.precopy:
            round = self._begin_round(running, self._choice.next(running, at is None), at, forsworn)
            at = round.time
        self._say(events.accepted(running, at))

    def _decide(self, passed: Callable[[int], bool]) -> None:
        """Once all commands up to a round's time are known, so is what it really moves."""
        for running in self.running:
            for round in running.rounds:
                if round.sent and not round.decided and passed(round.time):
                    round.decided = True
                    self._settle(running, round)

    def _press(self) -> None:
        """What moves at a time that was named does so when the data comes there; where a command
        without a time waits for that, idle sources are to move on."""
        timeless = (one for one in self.commands if one.command.time is None)
        waiting = {bin for one in timeless for bin in one.waiting}
        for round in self.rounds():
            if round.decided and round.demand is None and not waiting.isdisjoint(round.bins):
                round.demand = self._demand(round.time)

    def _settle(self, running: RunningMigration, round: Round) -> None:
        """See what of a round moves, and call off what was prepared of the rest."""
        for moves in round.moves:
            for transfer in self._routing.transfers(moves):
                way = BinMove(self._groups.own(transfer.bin), transfer.source, transfer.target)
                if operators := self._groups.operators(transfer.bin):
                    round.awaited[int(transfer.bin)] = BinInTransit(way, set(operators))
        for other in self.running:
            for bin, fetch in list(other.fetches.items()):
                transit = round.awaited.get(int(bin))
                if other is running and bin in round.bins:
                    if transit is not None and transit.way == fetch.way:
                        del other.fetches[bin]
                    else:
                        self.fetching.call_off(other, bin)
                elif transit is not None:
                    self.fetching.call_off(other, bin)

    def _end_rounds(self, running: RunningMigration, over: Callable[[int], bool]) -> None:
        for round in list(running.rounds):
            if round.decided and not round.awaited and over(round.time):
                self._forget(running, round)

    def _forget(self, running: RunningMigration, round: Round) -> None:
        running.rounds.remove(round)
        self._taken.difference_update((round.time, bin) for bin in round.bins)
        if round.demand is not None:
            round.demand.drop()

    def _leave_out(self, running: RunningMigration) -> None:
        """What another command has taken from whom it was to be taken from stays where it is."""
        for bin in self._choice.taken_away(running):
            running.waiting.remove(bin)
            if bin in running.fetches:
                self.fetching.call_off(running, bin)

    def _put_off(self, running: RunningMigration) -> None:
        """What lies ready cannot be merged or renewed, so it is not to lie there for long: where a
        time is not near any more, as the data has slowed down, it is made ready anew later."""
        for round in running.undecided:
            if not self._near(round.time):
                for bin in running.fetches.keys() & set(round.bins):
                    self.fetching.call_off(running, bin)

    def _prepare(self, running: RunningMigration) -> None:
        """Have more bins made ready, as far as there is room."""
        if not running.command.precopy:
            return
        room = self.fetching.room
        soon = [round for round in running.undecided if self._near(round.time)]
        for bin in (*(bin for round in soon for bin in round.bins), *running.waiting):
            if room <= 0:
                return
            if bin in running.fetches or bin in running.there:
                continue
            way = self._choice.way(running.command, bin)
            if way is None:
                running.there.add(bin)
            elif not self._moving(bin) and self.fetching.claim(running, bin):
                self.fetching.begin(running, bin, way)
                room -= self.fetching.weight(bin)

    def _go_on(self, running: RunningMigration, forsworn: int) -> None:
        """Begin the next round, once those before are over and its bins are ready."""
        if running.rounds:
            return
        chosen = self._choice.next(running, running.command.precopy)
        # Records wait for a round, however many bins it has: so there are few.
        batch = running.command.precopy and running.command.strategy == "batched"
        if chosen and not (batch and len(chosen) < PER_PAIR and running.preparing):
            self._begin_round(running, chosen, None, forsworn)

    def _begin_round(
        self, running: RunningMigration, bins: list[Bin], time: int | None, forsworn: int
    ) -> Round:
        running.waiting = [bin for bin in running.waiting if bin not in set(bins)]
        demand = None
        if time is None:
            time = self._soonest(bins, forsworn)
            demand = self._demand(time)
        by_target: dict[WorkerId, list[Bin]] = {}
        for bin in bins:
            target = running.command.target(self._groups.own(bin))
            by_target.setdefault(target, []).append(bin)
        id = running.command.id
        moves = [Moves(id, time, target, tuple(some)) for target, some in by_target.items()]
        self._taken.update((time, bin) for bin in bins)
        round = Round(id, time, moves, demand, self._clock.monotonic(), len(moves))
        for one in moves:
            self._decisions.take(one, partial(self._send, round, one))
        running.rounds.append(round)
        return round

    def _send(self, round: Round, moves: Moves) -> None:
        round.unsent -= 1
        self._routing.add(moves)
        self._tell_all(moves)

    def _revoke(self, running: RunningMigration, round: Round) -> None:
        """A round whose time has not come is not to be."""
        revoke = Revoke(round.command, round.time)

        def send() -> None:
            self._routing.revoke(revoke.command, revoke.time)
            self._tell_all(revoke)

        self._decisions.take(revoke, send)
        running.waiting += round.bins
        for bin in round.bins:
            if bin in running.fetches:
                self.fetching.call_off(running, bin)
        self._forget(running, round)

    def _complete(self, running: RunningMigration) -> None:
        self._speed.note(running)
        for bin in list(running.fetches):
            self.fetching.call_off(running, bin)
        self.running.remove(running)
        self._say_completed(running)

    def _say_completed(self, running: RunningMigration) -> None:
        seconds = self._clock.monotonic() - running.begun
        self._say(events.completed(running, seconds, self._groups.own))

    def _drop_waiting(self, running: RunningMigration) -> None:
        running.stuck.update(dict.fromkeys(running.waiting, "aborted"))
        running.waiting.clear()

    # -- what is known

    def rounds(self) -> list[Round]:
        """Bins that move now, each with those that move at its time."""
        return [round for running in self.running for round in running.rounds]

    @property
    def idle(self) -> bool:
        """Whether no command is under way."""
        return not self.running and not self._queued

    def outlooks(self) -> dict[str, tuple[int, float | None]]:
        """Of each command under way: how many bins are ready to move, and in how many seconds it
        may be over."""
        return {one.command.id: (one.ready, one.eta(self.sizes)) for one in self.running}

    @property
    def resting(self) -> bool:
        """Whether all commands under way wait for a time to come."""
        return all(
            one.rounds and all(fetch.ready for fetch in one.fetches.values())
            for one in self.running
        )

    @property
    def commands(self) -> list[RunningMigration]:
        """All under way, also those that wait for others."""
        return [*self.running, *self._queued]

    def bound_for(self, worker: WorkerId) -> list[str]:
        """The commands that bring bins to a worker."""
        return [one.command.id for one in self.commands if worker in one.command.targets]

    def patience(self, due: Callable[[Round], bool]) -> float:
        """The part of the lead that there is time for: none where bins that are not prepared wait
        for a round that is due, some while prepared ones come round after round."""
        waiting = [one for one in self.running if one.waiting]
        if any(any(map(due, one.rounds)) for one in waiting if not one.command.precopy):
            return 0.0
        return BETWEEN if any(one.command.time is None for one in waiting) else 1.0

    def events(self) -> list[Event]:
        """What has happened since the last call."""
        taken, self._events = self._events, []
        return taken

    def _moving(self, bin: Bin) -> bool:
        """Whether a bin is on its way, or has come so recently that not all know."""
        return any(round.decided and bin in round.bins for round in self.rounds())

    def _before(self, running: RunningMigration, forsworn: int) -> list[RunningMigration]:
        """The commands that one without a time has to wait for: those that have begun to move some
        of its bins, and those that wait themselves."""
        if running.command.time is not None:
            return []
        bins = running.named
        ahead = self.commands
        if running in ahead:
            ahead = ahead[: ahead.index(running)]
        begun = [o for o in ahead if o.command.time is None or o.command.time < forsworn]
        return [one for one in begun if not bins.isdisjoint(one.named)]

    def _soonest(self, bins: Iterable[Bin], time: int) -> int:
        while any((time, bin) in self._taken for bin in bins):
            time += 1
        return time

    def _say(self, event: Event) -> None:
        self._events.append(event)
