"""The coordinator's part in the dataflow: the only source of commands (design 2, forswearing).

Guarantees that no command gets a time it has forsworn, and that every command's time was journalled
before any worker hears of it. It holds the capability of the control source at T, the least time
not forsworn: just past the furthest time that any source has read, plus a lead that follows the
speed of the data. Commands without a time get T, and are announced as a demand so that idle
sources move. Cost: O(1) per turn in which no source moves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from dataflow import account
from dataflow.account import Event
from dataflow.decisions import Decisions, Joins, Journal, Leaves, Recorder
from dataflow.forswearing import Forswearing, Pending
from dataflow.graph import Location
from dataflow.holding import Holders, Holding
from dataflow.inbound import read
from dataflow.membership import Roster
from dataflow.migrate.command import Migrate, Refused, used_before
from dataflow.migrate.moves import Moves
from dataflow.migrate.parcels import Order
from dataflow.migrate.routing import Routing, Transfer
from dataflow.nested import outward
from dataflow.plan import Plan
from dataflow.progress import Progress
from dataflow.protocols import Clock, Links
from dataflow.reading import Place, Reading
from dataflow.rounds import Part, Round, Running, Transit
from dataflow.rulings import NO_PAST, Past
from dataflow.staff import LATEST, Staff, introduction, share_of, shared_out
from dataflow.wire import DataFrame, HeardFrame, MemberFrame, ProgressFrame, encode_data
from dataflow.worker import members_of
from schemas.errors import MeanderError
from state.antichain import Antichain
from state.ids import COORDINATOR, Bin, WorkerId, member_name
from state.time import to_millis


class Controller:
    """Orders commands, assigns times, forswears, and says what became of them."""

    def __init__(
        self,
        plan: Plan,
        workers: int,
        links: Links,
        clock: Clock,
        journal: Journal,
        past: Past = NO_PAST,
    ) -> None:
        self._plan, self._links = plan, links
        self._clock, self.decisions = clock, Decisions(journal)
        self._recorder = Recorder(journal, clock)
        self._progress = Progress(plan.graph, COORDINATOR, members_of(workers), links)
        self._routing = Routing(plan.flow.space, workers)
        self._roster = Roster(plan.graph, self._progress, links)
        self._forswearing = Forswearing(plan, self._progress.changes, clock)
        members = list(map(WorkerId, range(workers)))
        tell = partial(self._tell_all, plan.handover.inputs[0])
        self.reading = Reading(
            plan, members, self._progress, self._forswearing, self.decisions, tell, past.mark
        )
        self.staff = Staff(members, self._roster, clock)
        self._ids: set[str] = set()
        self._running: list[Running] = []
        self._taken: set[tuple[int, Bin]] = set()
        self._events: list[Event] = []
        self._holders = Holders(plan)

    # -- what the coordinator calls

    def submit(self, command: Migrate) -> None:
        """Accept a command. Raises Refused with a sentence that says what would be right."""
        self._check(command)
        now = self._clock.monotonic()
        bins = list(dict.fromkeys(command.bins))
        running = Running(command, now, bins)
        first = self._next_round(running, command.time)
        self._ids.add(command.id)
        self._running.append(running)
        self._events.append(account.accepted(running, first.moves.time, bins))

    def use(self, id: str) -> None:
        """An id is a command's from now on. Raises Refused if it was before."""
        if id in self._ids:
            raise used_before(id)
        self._ids.add(id)

    def join(self, worker: WorkerId) -> None:
        """A worker joins the running flow; its links stand. It owns no bins until some move to it.

        Raises Refused where that cannot be.
        """
        time = self._forswearing.open_time()
        self.staff.expect(worker)
        self.decisions.take(Joins(worker, time), partial(self._admit, worker))

    def share(self, id: str, newcomers: Sequence[WorkerId]) -> set[str]:
        """Workers get as many bins and partitions as the others have, by the fewest moves; the ids
        of these. Raises Refused where that cannot be."""
        time = self._forswearing.open_time()
        staying = self.staff.staying
        owners = self._routing.owners(time) if self._plan.keyed else []
        bins = share_of({Bin(b): owner for b, owner in enumerate(owners)}, newcomers, staying)
        read = {place: worker for worker in staying for place in self.reading.of(worker)}
        return self._hand_out(id, bins, share_of(read, newcomers, staying), time)

    def leave(self, id: str, workers: Sequence[WorkerId]) -> None:
        """Workers give bins and partitions to the others, then they end. Raises Refused."""
        others = self.staff.others(workers)
        time = self._forswearing.open_time()
        for worker in workers:
            to_come = [one.command.id for one in self._running if one.command.worker == worker]
            if to_come or self.reading.coming_to(worker):
                what = f"bins by command {to_come[0]!r}" if to_come else "a partition"
                raise Refused(f"{member_name(worker)} gets {what}: wait for the end of that")
        self.use(id)
        # Also what a command has promised to others for later: it must be gone before.
        owners = self._routing.owners(time) if self._plan.keyed else []
        owned = [Bin(b) for b, owner in enumerate(owners) if owner in workers]
        read = [place for worker in workers for place in self.reading.of(worker)]
        names = self._hand_out(id, shared_out(owned, others), shared_out(read, others), time)
        for worker in workers:
            self.staff.retire(worker, names | self.reading.going_from(worker))

    def hand_over(self, id: str, source: str, partition: int, worker: WorkerId) -> None:
        """Another worker reads a partition from now on. Raises Refused where that cannot be."""
        if worker not in self.staff.staying:
            raise Refused(f"worker {worker} is unknown")
        time = self._forswearing.open_time()
        self.reading.begin(id, self.reading.place(source, partition), worker, time)

    def _hand_out(
        self,
        id: str,
        bins: Mapping[WorkerId, Sequence[Bin]],
        places: Mapping[WorkerId, Sequence[Place]],
        time: int,
    ) -> set[str]:
        """Bins and partitions go to others, all or none of them; the ids of that."""
        moves = [
            Migrate(f"{id}/{target}", tuple(some), target, None, "sudden")
            for target, some in bins.items()
        ]
        for command in moves:
            self._check(command)
        names = {command.id for command in moves}
        for target, some in places.items():
            for place in some:
                names.add(name := f"{id}/{place[0]}.{place[1]}")
                self.reading.begin(name, place, target, time)
        for command in moves:
            self.submit(command)
        return names

    def report(self, worker: WorkerId, event: Event) -> None:
        """Take a worker's report of what it reads, or of a bin of an operator it has installed."""
        match event:
            case {"event": "reads"}:
                self.reading.noted(worker, event)
            case {
                "event": "bin_moved", "operator": str(operator), "bin": int(bin),
                "time": int(time), "bytes": int(size), "keys": int(keys),
            }:  # fmt: skip
                self._install(Part(operator, bin, time, size, keys))

    def take(self, sender: WorkerId, frame: list[bytes]) -> None:
        """Act on one frame of a worker. Raises MeanderError for one that has no place here."""
        match read(self._plan, sender, frame):
            case ProgressFrame() | HeardFrame() as update:
                self._progress.take(sender, update)
                if isinstance(update, ProgressFrame):
                    self._recorder.hear(update.rulings)
            case MemberFrame() as news:
                self._roster.take(sender, news)
                self.staff.gone(sender)
                self._events.append({"type": "left", "worker": int(sender)})
            case DataFrame():
                raise MeanderError(member_name(sender), "it sent data to the coordinator")
            case _:
                raise MeanderError(member_name(sender), "it said what only workers are told")

    def step(self) -> bool:
        """One turn; whether anything was done."""
        received = False
        for sender, frame in self._links.receive():
            self.take(sender, frame)
            received = True
        if self._progress.ready:
            self.decisions.send()
            self.reading.begin_new(self.staff.staying)
            self._forswear()
            self._decide()
            self._finish_rounds()
            self._finish_orders()
            self._dismiss()
        self._recorder.write(over=self._progress.settled())
        flushed = self._progress.flush()
        self.staff.announce()
        self._links.flush()
        return flushed or received

    def events(self) -> list[Event]:
        """What has happened since the last call."""
        taken, self._events = self._events, []
        return taken

    @property
    def done(self) -> bool:
        """Whether the whole computation is over."""
        return self._progress.settled() and not self._running and self._recorder.done

    @property
    def ready(self) -> bool:
        """Whether all have opened and said what they read, so that workers may come and go."""
        return self._progress.ready and self.reading.known

    @property
    def busy(self) -> bool:
        """Whether bins are moving, or about to: the time of a command may be far off."""
        return any(map(self._due, self._running))

    def rounds(self) -> list[Round]:
        """Bins that move now, each with those that move at its time."""
        return [round for running in self._running for round in running.rounds]

    @property
    def forsworn(self) -> int | None:
        """T: no command will have a time before it. None once there will be none at all."""
        return self._forswearing.least

    def frontiers(self) -> dict[str, Antichain]:
        """The frontier at every probe and sink, by name."""
        return {name: self._progress.frontier(at) for name, at in self._plan.probes.items()}

    def holdings(self) -> dict[str, Holding]:
        """What holds back the frontier at every probe and sink, by name."""
        found = {n: self._holders.of(self._progress, at) for n, at in self._plan.probes.items()}
        return {name: holding for name, holding in found.items() if holding is not None}

    def furthest(self) -> int | None:
        """The furthest time that any source has read."""
        return self._progress.furthest(self._plan.read_locations)

    def owners(self) -> list[WorkerId]:
        """The owner of every bin after all moves decided so far."""
        control = self._progress.frontier(self._plan.migrator.inputs[0])
        least = min((t for t in control if isinstance(t, int)), default=None)
        return self._routing.owners(LATEST if least is None else least - 1)

    # -- accepting

    def _check(self, command: Migrate) -> None:
        if command.id in self._ids:
            raise used_before(command.id)
        if not self._plan.keyed:
            raise Refused("this flow has no stateful operator, so there is nothing to move")
        command.check(self._plan.flow.space.count, self.staff.staying)
        self._forswearing.open_time()
        if command.time is not None:
            self._check_time(command, command.time)

    def _check_time(self, command: Migrate, time: int) -> None:
        self._forswearing.expect(time)
        first = command.bins[:1] if command.strategy == "fluid" else command.bins
        for bin in first:
            if (time, bin) in self._taken:
                raise Refused(f"bin {bin} already moves at {to_millis(time)} ms: name another time")

    def _next_round(self, running: Running, time: int | None) -> Round:
        count = 1 if running.command.strategy == "fluid" else len(running.waiting)
        bins, running.waiting = tuple(running.waiting[:count]), running.waiting[count:]
        demand = None
        if time is None:
            time = self._soonest(bins)
            demand = self._forswearing.demand(time)
        moves = Moves(running.command.id, time, running.command.worker, bins)
        self._taken.update((time, bin) for bin in bins)
        round = Round(moves, demand, self._clock.monotonic())
        self.decisions.take(moves, partial(self._send, round))
        running.rounds.append(round)
        return round

    def _soonest(self, bins: tuple[Bin, ...]) -> int:
        time = self.forsworn
        assert time is not None
        while any((time, bin) in self._taken for bin in bins):
            time += 1
        return time

    # -- the steps of a turn

    def _send(self, round: Round) -> None:
        moves, round.sent = round.moves, True
        self._routing.add(moves)
        self._tell_all(self._plan.migrator.inputs[0], moves)

    def _admit(self, worker: WorkerId) -> None:
        forsworn = self._forswearing.open_time()
        self._progress.flush()
        self.staff.admit(worker)
        for moves in introduction(self._routing, forsworn):
            self._tell(worker, self._plan.migrator.inputs[0], moves)
        self._events.append({"type": "joined", "worker": int(worker)})

    def _tell_all(self, at: Location, decision: Moves | Order) -> None:
        for worker in self.staff.working:
            if self.staff.hears(worker, decision.time):
                self._tell(worker, at, decision)

    def _tell(self, worker: WorkerId, at: Location, decision: Moves | Order) -> None:
        self._forswearing.check(decision.time)
        edge = next(edge for edge in self._plan.graph.edges if edge.target == at)
        self._progress.changes.add(at, decision.time, 1)
        self._links.send(worker, encode_data(edge.id, decision.time, decision))

    def _finish_orders(self) -> None:
        for handing in self.reading.finish():
            source = self._plan.sources[handing.order.source].name
            self._events.append(account.partition_given(handing, source))

    def _dismiss(self) -> None:
        """Let those go whose bins have moved."""
        if self.forsworn is None:
            return
        running = {one.command.id for one in self._running}
        for worker in self.staff.relieved(running | self.reading.running):
            until = self.forsworn
            self.staff.dismiss(worker, until, self._forswearing.demand(until))
            self.decisions.take(Leaves(worker, until), partial(self.staff.part, worker))

    def _decide(self) -> None:
        """Once all commands up to a round's time are known, so is what it really moves."""
        for round in self.rounds():
            if round.sent and not round.decided and self._forswearing.passed(round.moves.time):
                round.decided = True
                for transfer in self._routing.transfers(round.moves):
                    self._await(round, transfer)
        if self.forsworn is not None:
            self._routing.settle(Antichain.of(self.forsworn))

    def _await(self, round: Round, transfer: Transfer) -> None:
        operators = {keyed.name for keyed in self._plan.keyed}
        round.awaited[int(transfer.bin)] = Transit(transfer.source, operators)

    def _finish_rounds(self) -> None:
        for running in list(self._running):
            for round in [r for r in running.rounds if self._complete(r)]:
                running.rounds.remove(round)
                self._taken.difference_update((round.moves.time, b) for b in round.moves.bins)
                if round.demand is not None:
                    round.demand.drop()
            if running.rounds:
                continue
            if running.waiting and self.forsworn is not None:
                self._next_round(running, None)
            else:
                self._running.remove(running)
                seconds = self._clock.monotonic() - running.begun
                self._events.append(account.completed(running, seconds))

    def _complete(self, round: Round) -> bool:
        if not round.decided or round.awaited:
            return False
        outputs = (self._plan.ports[keyed.name].outputs[0] for keyed in self._plan.keyed)
        frontiers = (outward(self._progress.frontier(output)) for output in outputs)
        return not any(frontier.less_equal(round.moves.time) for frontier in frontiers)

    def _install(self, part: Part) -> None:
        for running in self._running:
            for round in running.rounds:
                if (moved := round.install(part)) is not None:
                    running.count(moved)
                    seconds = self._clock.monotonic() - round.begun
                    self._events.append(account.bin_moved(round, part.bin, moved, seconds))

    def _forswear(self) -> None:
        rounds = self.rounds()
        sent = [round for round in rounds if round.sent]
        self._forswearing.advance(
            Pending(
                furthest=self.furthest(),
                unsent=self.decisions.least,
                sent=[round.moves.time for round in sent],
                demanded=[
                    *(round.moves.time for round in sent if round.demand is not None),
                    *self.reading.times,
                ],
                waiting=any(running.waiting for running in self._running),
                soon=any(running.waiting and self._due(running) for running in self._running),
            )
        )

    def _due(self, running: Running) -> bool:
        """Whether it is to be sent, or the time of some of its bins can be no other any more."""
        return any(
            not round.sent or self._forswearing.passed(round.moves.time) for round in running.rounds
        )
