"""The migration scheduler: it prepares bins, gives rounds their times and counts moved bins.

Guarantees that every accepted command ends, and that a bin is in one round per time and command.
Guarantees that each prepared bin moves or has its move cancelled. The rounds of one command follow
each other. Commands without a time queue where they name the same bins; others run concurrently.
Only bins whose last round is over are prepared, and `move_memory` limits how many at once (I6).
Cost: O(pending bins) per turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from msgspec.structs import replace

from meander.dataflow.control.colocation import ColocationGroups
from meander.dataflow.control.command import MoveBins, id_in_use
from meander.dataflow.control.decisions import PendingDecisions
from meander.dataflow.control.instructions import Instruction, Revoke, Rewrite
from meander.dataflow.control.reassignment import Moves
from meander.dataflow.control.reports import BinInstalled, BinUnreadableReport
from meander.dataflow.control.routing import Routing
from meander.dataflow.interfaces import Clock
from meander.dataflow.migration import events
from meander.dataflow.migration.bin_selector import PER_PAIR, BinSelector
from meander.dataflow.migration.bin_stats import Sizes
from meander.dataflow.migration.estimate import MigrationEstimate, TransferRate
from meander.dataflow.migration.pre_copy_tracker import PreCopyTracker
from meander.dataflow.migration.rounds import BinInTransit, BinMove, Round, RunningMigration
from meander.dataflow.progress.capability import Capability
from meander.schemas.control import CommandError
from meander.schemas.status import BinUnreadable, Event
from meander.state.keys.ids import Bin, WorkerId

BETWEEN = 0.2
"""The share of the lead between two rounds of prepared bins."""


class MigrationScheduler:
    """A scheduler of all commands that move bins. Bins have their numbers among all groups here."""

    def __init__(
        self,
        groups: ColocationGroups,
        routing: Routing,
        decisions: PendingDecisions,
        clock: Clock,
        most_bytes: int,
        send: Callable[[WorkerId, Instruction], None],
        broadcast: Callable[[Moves | Revoke], None],
        request_advance: Callable[[int], Capability],
        near: Callable[[int], bool],
    ) -> None:
        self._groups, self._routing, self._decisions = groups, routing, decisions
        self._clock, self._send, self._broadcast, self._request_advance = (
            clock,
            send,
            broadcast,
            request_advance,
        )
        self._near = near
        self.ids: set[str] = set()
        self.running: list[RunningMigration] = []
        self._queued: list[RunningMigration] = []
        self._times_in_use: set[tuple[int, Bin]] = set()
        self.sizes, self._rate = Sizes(), TransferRate()
        self._selector = BinSelector(groups, routing, self.sizes)
        self.pre_copies = PreCopyTracker(self.running, groups, self.sizes, most_bytes, send)
        self._events: list[Event] = []

    # -- commands

    def submit(self, command: MoveBins, closed_before: int) -> None:
        """Start or queue a command. Raise `CommandError` where it may not queue."""
        self._selector.now = closed_before
        running = RunningMigration(
            command, self._clock.monotonic(), self._selector.bins_of(command)
        )
        if command.overlap == "reject":
            self._expect_disjoint(running)
        before = self._before(running, closed_before)
        self.ids.add(command.id)
        if before:
            self._queued.append(running)
            self._report(events.queued(running, [one.command.id for one in before]))
        else:
            self._start(running, closed_before)

    def _expect_disjoint(self, running: RunningMigration) -> None:
        for one in self.commands:
            if running.named.isdisjoint(one.named):
                continue
            bin = self._groups.local_bin(min(one.named & running.named))
            raise CommandError(
                f"bin {bin} is moved by command {one.command.id!r}: wait for its end, abort it, or"
                " let this one queue"
            )

    def abort(
        self, id: str, by: str, closed_before: int | None, others: Sequence[str] = ()
    ) -> None:
        """End a command once its current moves are complete. Raise `CommandError` where it cannot
        end; the error names the commands that can, and `others`."""
        if by in self.ids:
            raise id_in_use(by)
        running = next((one for one in self.commands if one.command.id == id), None)
        if running is None or running.aborted is not None:
            raise _not_running(id, [*self._abortable, *others])
        if running.command.has_to_complete:
            raise CommandError(
                f"command {id!r} is a part of another command, so it has to complete"
            )
        self.ids.add(by)
        for round in running.rounds:
            if closed_before is not None and not round.decided and round.time >= closed_before:
                self._revoke(running, round)
        self._end_waiting(running, by)

    def _end_waiting(self, running: RunningMigration, by: str) -> None:
        """Leave the waiting bins of a command in place; the command `by` aborts it."""
        running.aborted = by
        for bin in list(running.pre_copies):
            if bin in running.waiting:
                self.pre_copies.cancel(running, bin)
        # The bins are free at once: another command may follow in the same turn.
        running.kept_in_place.update(dict.fromkeys(running.waiting, "aborted"))
        running.waiting.clear()
        if running in self._queued:
            self._queued.remove(running)
            self.running.append(running)

    # -- parts of reconfigurations

    def is_prepared(self, id: str) -> bool:
        """Return whether all bins of a reconfiguration are ready to move."""
        parts = self._parts_of(id)
        ready = (running.is_ready(bin) for running in parts for bin in running.waiting)
        return all(ready) and not any(running in self._queued for running in parts)

    def free_time(self, id: str, time: int) -> int:
        """Return the first time from `time` on at which no other command moves a bin of a
        reconfiguration."""
        bins = [bin for running in self._parts_of(id) for bin in running.waiting]
        return self._earliest(bins, time)

    def start_prepared(self, id: str, time: int, closed_before: int) -> None:
        """Move all bins of a reconfiguration at one time."""
        for running in self._parts_of(id):
            if running.waiting:
                self._start_round(running, list(running.waiting), time, closed_before)

    def cancel(self, id: str) -> None:
        """End the parts of a reconfiguration that has not been decided."""
        for running in self._parts_of(id):
            self._end_waiting(running, id)

    def _parts_of(self, id: str) -> list[RunningMigration]:
        return [one for one in self.commands if one.command.part_of == id and one.aborted is None]

    def moved_already(self, command: MoveBins, time: int) -> Bin | None:
        """Return a bin of a command that another command moves at the same time, or None."""
        bins = self._selector.bins_of(command)
        first = bins[:1] if command.strategy == "fluid" else bins
        return next(
            (self._groups.local_bin(bin) for bin in first if (time, bin) in self._times_in_use),
            None,
        )

    def plan(self, command: MoveBins) -> MigrationEstimate:
        """Return the estimate of a command."""
        sizes = {
            self._groups.local_bin(bin): self.sizes.of(bin)
            for bin in self._selector.bins_of(command)
        }
        return MigrationEstimate(self._selector.rounds(command), sizes, self._rate.bytes_per_second)

    # -- reports of workers

    def bin_unreadable(self, report: BinUnreadableReport) -> None:
        """Handle unreadable layers, found by a prefetch or at the time of a move."""
        operator, bin, time, reason = report.operator, report.bin, report.time, report.reason
        numbered = self._groups.number(operator, bin)
        if time is not None:
            for round in self.rounds():
                if round.time == time and (transit := round.awaited.get(numbered)) is not None:
                    self._send(transit.move.source, Rewrite(operator, bin, time))
                    self._report(
                        BinUnreadable(round.command, bin, operator, reason, kept_in_place=False)
                    )
            return
        for running in self.pre_copies.bin_unreadable(report.number, operator, bin):
            kept_in_place = numbered in running.waiting and not running.command.has_to_complete
            if kept_in_place:
                running.waiting.remove(numbered)
                running.kept_in_place[numbered] = reason
            elif numbered in running.waiting:
                # The bin has to move: the owner writes it again from its state, at the time of the
                # move.
                running.already_there.add(numbered)
            id = running.command.id
            self._report(BinUnreadable(id, bin, operator, reason, kept_in_place))

    def installed(self, part: BinInstalled) -> None:
        """Note that an operator has installed its part of a bin."""
        part = replace(part, bin=self._groups.number(part.operator, part.bin))
        self.sizes.note(part.operator, part.bin, part.bytes)
        for running in self.running:
            for round in running.rounds:
                if (moved := round.install(part)) is not None:
                    running.count(moved)
                    seconds = self._clock.monotonic() - round.started_at
                    self._report(events.bin_moved(round, moved, seconds))

    # -- the steps of a turn

    def step(
        self,
        closed_before: int | None,
        passed: Callable[[int], bool],
        over: Callable[[int], bool],
    ) -> None:
        """Run one turn.

        `passed` returns whether all decisions for a time are known; `over`, whether every stateful
        operator has passed it.
        """
        if closed_before is not None:
            self._selector.now = closed_before
        self._decide(passed)
        self._request_advances()
        for running in list(self.running):
            running.update_seconds(self._clock.monotonic())
            self._end_rounds(running, over)
            if running.aborted is None and closed_before is not None:
                self._drop_moved_away(running)
                self._postpone(running)
                self._prepare(running)
                self._start_next_round(running, closed_before)
            if not running.rounds and (not running.waiting or closed_before is None):
                self._complete(running)
        for running in list(self._queued):
            if closed_before is None:
                self._queued.remove(running)
                self._report_completed(running)
            elif not self._before(running, closed_before):
                self._queued.remove(running)
                self._start(running, closed_before)

    def _start(self, running: RunningMigration, closed_before: int) -> None:
        self.running.append(running)
        command = running.command
        # The heat of bins may have changed while the command was queued.
        running.waiting = self._selector.bins_of(command)
        at = command.time
        if at is not None or not command.precopy:
            round = self._start_round(
                running, self._selector.next(running, at is None), at, closed_before
            )
            at = round.time
        self._report(events.accepted(running, at))

    def _decide(self, passed: Callable[[int], bool]) -> None:
        """Decide which bins of a round really move, once all commands up to its time are known."""
        for running in self.running:
            for round in running.rounds:
                if round.sent and not round.decided and passed(round.time):
                    round.decided = True
                    self._await_transfers(running, round)

    def _request_advances(self) -> None:
        """Request an advance to the time of a round for which a command without a time waits.

        Without such a command a round with a named time waits for the data.
        """
        timeless = (one for one in self.commands if one.command.time is None)
        waiting = {bin for one in timeless for bin in one.waiting}
        for round in self.rounds():
            if (
                round.decided
                and round.advance_request is None
                and not waiting.isdisjoint(round.bins)
            ):
                round.advance_request = self._request_advance(round.time)

    def _await_transfers(self, running: RunningMigration, round: Round) -> None:
        """Note which bins of a round move, and cancel what was prepared for the others."""
        for moves in round.moves:
            for transfer in self._routing.transfers(moves):
                move = BinMove(
                    self._groups.local_bin(transfer.bin), transfer.source, transfer.target
                )
                if operators := self._groups.operators(transfer.bin):
                    round.awaited[int(transfer.bin)] = BinInTransit(move, set(operators))
        for other in self.running:
            for bin, pre_copy in list(other.pre_copies.items()):
                transit = round.awaited.get(int(bin))
                if other is running and bin in round.bins:
                    if transit is not None and transit.move == pre_copy.move:
                        del other.pre_copies[bin]
                    else:
                        self.pre_copies.cancel(other, bin)
                elif transit is not None:
                    self.pre_copies.cancel(other, bin)

    def _end_rounds(self, running: RunningMigration, over: Callable[[int], bool]) -> None:
        for round in list(running.rounds):
            if round.decided and not round.awaited and over(round.time):
                self._remove_round(running, round)

    def _remove_round(self, running: RunningMigration, round: Round) -> None:
        running.rounds.remove(round)
        self._times_in_use.difference_update((round.time, bin) for bin in round.bins)
        if round.advance_request is not None:
            round.advance_request.drop()

    def _drop_moved_away(self, running: RunningMigration) -> None:
        """Leave bins in place that another command has taken from their named source."""
        for bin in self._selector.moved_away(running):
            running.waiting.remove(bin)
            if bin in running.pre_copies:
                self.pre_copies.cancel(running, bin)

    def _postpone(self, running: RunningMigration) -> None:
        """Cancel the preparation of bins whose time is no longer near, because the data has slowed
        down.

        Prepared layers cannot be merged or renewed, so they should not wait for long.
        """
        for round in running.undecided:
            if not self._near(round.time):
                later = running.named if running.lies_ahead else set(round.bins)
                for bin in running.pre_copies.keys() & later:
                    self.pre_copies.cancel(running, bin)

    def _prepare(self, running: RunningMigration) -> None:
        """Prepare more bins while the memory lasts."""
        if not running.command.precopy:
            return
        room = self.pre_copies.room
        soon = [round for round in running.undecided if self._near(round.time)]
        waiting = running.waiting if soon or not running.lies_ahead else ()
        for bin in (*(bin for round in soon for bin in round.bins), *waiting):
            if room <= 0:
                return
            if bin in running.pre_copies or bin in running.already_there:
                continue
            move = self._selector.move_of(running.command, bin)
            if move is None:
                running.already_there.add(bin)
            elif not self._moving(bin) and self.pre_copies.claim(running, bin):
                self.pre_copies.start(running, bin, move)
                room -= self.pre_copies.weight(bin)

    def _start_next_round(self, running: RunningMigration, closed_before: int) -> None:
        """Start the next round once the rounds before are over and its bins are ready."""
        if running.rounds or running.command.part_of:
            return
        chosen = self._selector.next(running, running.command.precopy)
        # Records wait in every round, however many bins it has, so there should be few rounds.
        batch = running.command.precopy and running.command.strategy == "batched"
        if chosen and not (batch and len(chosen) < PER_PAIR and running.preparing):
            self._start_round(running, chosen, None, closed_before)

    def _start_round(
        self, running: RunningMigration, bins: list[Bin], time: int | None, closed_before: int
    ) -> Round:
        running.waiting = [bin for bin in running.waiting if bin not in set(bins)]
        advance_request = None
        if time is None:
            time = self._earliest(bins, closed_before)
            advance_request = self._request_advance(time)
        by_target: dict[WorkerId, list[Bin]] = {}
        for bin in bins:
            target = running.command.target(self._groups.local_bin(bin))
            by_target.setdefault(target, []).append(bin)
        id = running.command.id
        moves = [Moves(id, time, target, tuple(some)) for target, some in by_target.items()]
        self._times_in_use.update((time, bin) for bin in bins)
        round = Round(id, time, moves, advance_request, self._clock.monotonic(), len(moves))
        for one in moves:
            self._decisions.add(one, partial(self._send_round, round, one))
        running.rounds.append(round)
        return round

    def _send_round(self, round: Round, moves: Moves) -> None:
        round.unsent -= 1
        self._routing.add(moves)
        self._broadcast(moves)

    def _revoke(self, running: RunningMigration, round: Round) -> None:
        """Revoke a round whose time lies ahead."""
        revoke = Revoke(round.command, round.time)

        def send() -> None:
            self._routing.revoke(revoke.command, revoke.time)
            self._broadcast(revoke)

        self._decisions.add(revoke, send)
        running.waiting += round.bins
        for bin in round.bins:
            if bin in running.pre_copies:
                self.pre_copies.cancel(running, bin)
        self._remove_round(running, round)

    def _complete(self, running: RunningMigration) -> None:
        self._rate.note(running)
        for bin in list(running.pre_copies):
            self.pre_copies.cancel(running, bin)
        self.running.remove(running)
        self._report_completed(running)

    def _report_completed(self, running: RunningMigration) -> None:
        seconds = self._clock.monotonic() - running.started_at
        self._report(events.completed(running, seconds, self._groups.local_bin))

    # -- queries

    def rounds(self) -> list[Round]:
        """Return all rounds under way."""
        return [round for running in self.running for round in running.rounds]

    @property
    def idle(self) -> bool:
        """Whether no command is under way."""
        return not self.running and not self._queued

    def estimates(self) -> dict[str, tuple[int, float | None]]:
        """Return, by command, how many bins are ready to move and the seconds until its end, if
        known."""
        return {one.command.id: (one.ready, one.eta(self.sizes)) for one in self.running}

    @property
    def awaits_times(self) -> bool:
        """Whether all running commands only wait for their times."""
        return all(
            (one.rounds or one.command.part_of)
            and all(pre_copy.ready for pre_copy in one.pre_copies.values())
            for one in self.running
        )

    @property
    def commands(self) -> list[RunningMigration]:
        """All running and queued commands."""
        return [*self.running, *self._queued]

    @property
    def _abortable(self) -> list[str]:
        """The ids of the commands that another command may abort."""
        moving = (one for one in self.commands if one.aborted is None)
        return [one.command.id for one in moving if not one.command.has_to_complete]

    def ahead_of(self, id: str, closed_before: int) -> list[str]:
        """Return the ids of the commands whose end a queued command awaits."""
        queued = next((one for one in self._queued if one.command.id == id), None)
        before = [] if queued is None else self._before(queued, closed_before)
        return [one.command.id for one in before]

    def bound_for(self, worker: WorkerId) -> list[MoveBins]:
        """Return the commands that still move bins to a worker."""
        own = self._groups.local_bin
        return [
            one.command
            for one in self.commands
            if any(one.command.target(own(bin)) == worker for bin in one.named)
        ]

    def lead_share(self, due: Callable[[Round], bool]) -> float:
        """Return the share of the lead to use.

        It is zero where unprepared bins wait for a round that is due, and small while prepared bins
        move round after round.
        """
        waiting = [one for one in self.running if one.waiting]
        if any(any(map(due, one.rounds)) for one in waiting if not one.command.precopy):
            return 0.0
        return BETWEEN if any(one.command.time is None for one in waiting) else 1.0

    def events(self) -> list[Event]:
        """Return the events since the last call."""
        events, self._events = self._events, []
        return events

    def _moving(self, bin: Bin) -> bool:
        """Return whether a bin moves, or moved so recently that some workers may not know it."""
        return any(round.decided and bin in round.bins for round in self.rounds())

    def _before(self, running: RunningMigration, closed_before: int) -> list[RunningMigration]:
        """Return the commands for which a command without a time has to wait.

        These share bins with it, and were submitted earlier or have started to move.
        """
        if running.command.time is not None:
            return []
        bins = running.named
        ahead = self.commands
        if running in ahead:
            ahead = ahead[: ahead.index(running)]
        started = [o for o in ahead if o.command.time is None or o.command.time < closed_before]
        return [one for one in started if not bins.isdisjoint(one.named)]

    def _earliest(self, bins: Iterable[Bin], time: int) -> int:
        while any((time, bin) in self._times_in_use for bin in bins):
            time += 1
        return time

    def _report(self, event: Event) -> None:
        self._events.append(event)


def _not_running(id: str, known: Sequence[str]) -> CommandError:
    """Return the error for an abort of a command that is not running, given those that can end."""
    remedy = f"name one of {', '.join(map(repr, known))}" if known else "there is none to abort"
    return CommandError(f"command {id!r} is not running: {remedy}")
