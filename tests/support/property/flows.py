"""Random flows: folds, exchanges, splits that meet again, and loops, within each other.

A flow is a list of stages, from which both the flow itself and its single-threaded reference are
made. The reference takes one outer time after another, and in it one round after another: that is
the total order, so a stage need only keep its state from call to call.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

from meander import KeyedStream, Stream, flow_control
from meander.dataflow.control.logic_change import LogicChange
from meander.state.encoding import codec
from meander.state.keys.bins import BinSpace
from tests.support.property import changing as changing_logic
from tests.support.property import shapes
from tests.support.property.reference import Ask, Order, Pending, Record, Refusals, States

Ends = tuple[Stream[Any], Stream[Any]]
LOOPS = ("loop", "early")
"""Of the latter what enters a round leaves as well, and what its stages make goes round."""
LEVELS = 3
"""Operators in a row that multiply their inputs: the engine takes no more."""


@dataclass(frozen=True)
class Stage:
    """One step of a flow, of a kind."""

    kind: str
    name: str = ""
    number: int = 0
    first: tuple[Stage, ...] = ()
    keyless: bool = False
    """Whether it takes records without keys; any other gives those that come without one theirs."""


GENERATED = ("loops", "controlled", "changing", "ringing")
"""The kinds of cases whose flows are made of random stages."""
CHANGING = ("changing", "ringing")
"""Those whose logic changes; of the latter with timers, and so without loops."""
CHANGED = {"map": "turn", "fold": "tally", "sum": "gather"}
"""What the stages of other flows become where their logic changes."""


def stages_of(seed: int, kind: str = "loops") -> tuple[Stage, ...]:
    """Of the flow of a case with loops, or with flow control in it."""
    if kind == "ringing":
        return ringing(random.Random(f"ring {seed}"))
    stages = random_stages(random.Random(seed))
    if kind == "changing":
        return changing(stages)
    return stages if kind == "loops" else controlled(random.Random(f"control {seed}"), stages)


def changing(stages: tuple[Stage, ...]) -> tuple[Stage, ...]:
    """The same flow, with logic that can change."""
    return tuple(
        replace(one, kind=CHANGED.get(one.kind, one.kind), first=changing(one.first))
        for one in stages
    )


def ringing(rng: random.Random) -> tuple[Stage, ...]:
    """A flow with timers, all of whose logic can change: also ahead of the first exchange."""
    kinds = [*rng.choices(["turn", "ring", "tally"], k=rng.randint(0, 2)), "ring", "turn"]
    head = Stage("turn", "head", keyless=True)
    return (head, *(Stage(kind, f"s{n}") for n, kind in enumerate(kinds)))


WIDE = 1 << 20
"""The rows of a batch that holds all rows of a time."""


def controlled(rng: random.Random, stages: tuple[Stage, ...]) -> tuple[Stage, ...]:
    """The same flow, with flow control around parts of it, and so within and around its loops.

    Small batches divide times, which only some stages do not show.
    """
    found = list[Stage]()
    rest = [
        Stage("expand", "", rng.randint(1, 3), (), one.keyless)
        if one.kind == "parts" and rng.random() < 0.5
        else replace(one, first=controlled(rng, one.first))
        for one in stages
    ]
    while rest:
        some, rest = rest[: (size := rng.randint(1, 2))], rest[size:]
        if rng.random() < 0.5:
            narrow = _shows_no_batches(some)
            stateful = any(one.kind == "fold" for one in all_stages(tuple(some)))
            keyless = some[0].keyless and not (narrow and stateful)
            number = rng.randint(1, 3) if narrow else WIDE
            some = [Stage("control", "", number, tuple(some), keyless)]
        found += some
    return tuple(found)


def _shows_no_batches(stages: Sequence[Stage]) -> bool:
    """Whether it makes no difference in how many batches the rows of a time come. Behind a map,
    rows with equal places would be in another order: that of the bytes of their new values."""
    kinds = [one.kind for one in all_stages(tuple(stages)) if one.kind != "control"]
    return {*kinds} <= {"fold", "map", "parts", "expand"} and "fold" not in kinds[1:]


def random_stages(rng: random.Random) -> tuple[Stage, ...]:
    """With one loop at least."""
    while True:
        stages = tuple(_stages(rng, LEVELS, depth=0, names=iter(range(99)), keyless=True))
        if any(stage.kind in LOOPS for stage in all_stages(stages)):
            return stages


def _stages(
    rng: random.Random, levels: int, depth: int, names: Iterator[int], keyless: bool = False
) -> list[Stage]:
    stages = list[Stage]()
    for _ in range(rng.randint(1, 3)):
        name = f"s{next(names)}"
        kinds = ["map", "key", "fold", "fold"]
        kinds += ["parts", "outside"] * (levels > 0 and depth < 2)
        kinds += ["meet", "sum"] * (levels > 0)
        kinds += ["loop", "loop", "early"] * (depth < 2)
        kind = rng.choice(kinds)
        number = rng.randint(2, 5)
        keyless = keyless and kind in ("map", "parts", *LOOPS) and rng.random() < 0.7
        match kind:
            case "meet":
                levels -= 1
                some = tuple(_stages(rng, 0, 2, names)) if rng.random() < 0.5 else ()
                stages.append(Stage(kind, name, number, some))
            case "loop" | "early":
                inner = tuple(_stages(rng, levels, depth + 1, names, keyless))
                # What leaves is as deep as what its last round has made of it.
                levels -= _levels(inner)
                stages.append(Stage(kind, name, number, inner, keyless))
                keyless = keyless and (kind == "early" or inner[-1].keyless)
            case _:
                levels -= kind in ("parts", "outside", "sum")
                stages.append(Stage(kind, name, number, keyless=keyless))
    return stages


def _levels(stages: tuple[Stage, ...]) -> int:
    own = sum(stage.kind in ("parts", "outside", "sum", "meet") for stage in stages)
    return own + sum(_levels(stage.first) for stage in stages)


# -- the functions


def parts(value: Any) -> list[object]:
    return [{**value, "v": value["v"] + i} for i in range(value["v"] % 3)]


def bucket(number: int, value: Any) -> object:
    return (3 * value["k"] + value["v"]) % number


def stays(value: Any) -> str:
    return "leave" if value["v"] % 3 == 0 else "again"


def goes_round(value: Any) -> bool:
    return stays(value) == "again"


def onward(value: Any) -> object:
    return {"k": value["k"], "v": (5 * value["v"] + 1) % 97}


def add(context: Any, state: Any, value: Any) -> object:
    state.append(value["v"])
    context.emit({"k": value["k"], "v": sum(state) % 89})
    return state[-3:]


def compare(context: Any, state: Any, value: Any) -> object:
    if len(state) % 2:
        context.emit({"k": value["k"], "v": value["v"] + len(state)})
    return [value["v"], *state][:2]


def gather(context: Any, state: Any, value: Any) -> object:
    context.notify()
    return [*state, [value["k"], value["v"]]]


def sum_up(context: Any, state: Any) -> object:
    """Of all that has come for a key at one time, in one round."""
    total = sum(v for _, v in state) % 89
    context.emit({"k": state[0][0], "v": total})
    if len(state) > 1:
        context.emit({"k": state[-1][0], "v": total + len(state)})
    return []


# -- as a flow


def defined(stages: tuple[Stage, ...], stream: Stream[Any], outside: Stream[Any]) -> Stream[Any]:
    for stage in stages:
        stream = _define(stage, stream if stage.keyless else keyed(stream), outside)
    return stream


def keyed(stream: Stream[Any]) -> KeyedStream[Any]:
    return stream if isinstance(stream, KeyedStream) else stream.key_by(shapes.key)


def _define(stage: Stage, stream: Stream[Any], outside: Stream[Any]) -> Stream[Any]:
    match stage.kind:
        case "map":
            return stream.map(onward)
        case "turn":
            return stream.map(changing_logic.first_logic("turn"), name=stage.name)
        case "parts":
            return stream.flat_map(parts)
        case "loop" | "early":
            return stream.iterate(stage.name, _body(stage, outside), max_iterations=stage.number)
        case "control":
            with flow_control(stream, batch=stage.number, in_flight=1 + stage.number % 2) as inner:
                return defined(stage.first, inner, outside).leave()
        case "expand":
            with flow_control(stream, batch=stage.number, in_flight=2, expand=parts) as inner:
                return inner.leave()
    return _with_keys(stage, keyed(stream), outside)


def _body(stage: Stage, outside: Stream[Any]) -> Callable[[Stream[Any]], Ends]:
    def body(inside: Stream[Any]) -> Ends:
        done = defined(stage.first, inside, outside)
        if stage.kind == "early":
            return done.filter(goes_round).map(onward), inside.map(onward)
        again, leave = done.split(stays, "again", "leave")
        return again.map(onward), leave

    return body


def _with_keys(stage: Stage, stream: KeyedStream[Any], outside: Stream[Any]) -> KeyedStream[Any]:
    match stage.kind:
        case "key":
            return stream.key_by(lambda value: bucket(stage.number, value))
        case "fold":
            return stream.fold(stage.name, shapes.zero, shapes.total)
        case "tally":
            return stream.fold(stage.name, changing_logic.first_logic("tally"))
        case "gather" | "ring":
            return stream.process(stage.name, changing_logic.first_logic(stage.kind))
        case "sum":
            return stream.process(stage.name, shapes.empty, gather, on_notify=sum_up)
        case "outside":
            others = keyed(outside)
            return stream.connect(others, stage.name, shapes.empty, add, compare)
        case "meet":
            even, odd = stream.split(shapes.parity, "even", "odd")
            met = keyed(defined(stage.first, odd, outside))
            return even.connect(met, stage.name, shapes.empty, add, compare)
    raise ValueError(stage.kind)


# -- as a reference


@dataclass(frozen=True)
class Lane:
    """Results that keep an order: of one key or partition, through the same keys, to one key."""

    since: object
    key: bytes | None

    @property
    def recovers(self) -> bool:
        """Whether a recovery keeps the order: a record that changes its key may lose it."""
        return isinstance(self.since, int) or self.since == self.key


@dataclass(frozen=True)
class Keyed:
    """A record and the key that it has, if it has one."""

    record: Record
    key: bytes | None = None
    lane: object = None
    """The key under which a stateful operator gave the record, or the partition that it was read
    from, with the keys that it had since. None where it went round a loop since: others may
    overtake it there."""

    @property
    def whole_lane(self) -> object:
        """With its key, as what has another goes another way."""
        return None if self.lane is None else Lane(self.lane, self.key)

    @property
    def own(self) -> bytes:
        assert self.key is not None
        return self.key

    def with_a_key(self) -> Keyed:
        if self.key is not None:
            return self
        return replace(self, key=codec.encode(shapes.key(self.record.value)))

    def rekeyed(self, key: bytes) -> Keyed:
        """Give the record another key. It meets records of its old key alone in their order, as
        the worker of the old key sent it."""
        if self.lane is None or self.key in (None, key, self.lane):
            return replace(self, key=key)
        return replace(self, key=key, lane=(self.lane, self.key))

    def made(self, value: object, position: int | None = None) -> Keyed:
        order: Order = self.record.order
        if position is not None:
            order = (*order[:4], (order[4] << 20) | position)
        return replace(self, record=Record(order, value))


class Reference:
    """What a flow answers, keeps and sets aside."""

    def __init__(self, stages: tuple[Stage, ...], changes: Sequence[LogicChange] = ()) -> None:
        self.stages = stages
        self.versions = changing_logic.Versions(
            {name: changing_logic.first_logic(kind) for name, kind in changeable(stages).items()},
            changes,
        )
        self._upgrades = {name: self.versions.upgrades(name) for name in changeable(stages)}
        self._timers: dict[str, Pending] = defaultdict(Pending)
        self.states: States = {}
        self.refused: Refusals = []
        # Operators are numbered behind the one source.
        self.origins = {name: 1 + n for n, name in enumerate(stateful(stages))}
        self.states.update((name, {}) for name in self.origins)

    def run(self, records: list[Record]) -> list[Record]:
        results, times = [], sorted({record.order[0] for record in records}, reverse=True)
        while times or any(some.timers for some in self._timers.values()):
            due = [some.timers[0][0] for some in self._timers.values() if some.timers]
            time = min([*times[-1:], *due])
            if time in times[-1:]:
                times.pop()
            self._upgrade(time)
            now = [
                Keyed(record, lane=record.order[2]) for record in records if record.order[0] == time
            ]
            self._now = time
            made = self._stages(self.stages, now, now)
            results += [replace(one.record, lane=one.whole_lane) for one in made]
        self._upgrade(None)
        return results

    def _upgrade(self, time: int | None) -> None:
        """Upgrade all states by the changes up to a time, or by all."""
        for name, changes in self._upgrades.items():
            while changes and (time is None or changes[0].time <= time):
                change = changes.pop(0)
                if name in self.states:
                    self.states[name] = {
                        key: changing_logic.upgraded(change, deepcopy(state))
                        for key, state in self.states[name].items()
                    }

    def _stages(
        self, stages: tuple[Stage, ...], records: list[Keyed], outside: list[Keyed]
    ) -> list[Keyed]:
        for stage in stages:
            coming = records if stage.keyless else [r.with_a_key() for r in records]
            records = self._stage(stage, coming, outside)
        return records

    def _stage(self, stage: Stage, records: list[Keyed], outside: list[Keyed]) -> list[Keyed]:
        if stage.kind in changing_logic.CHOICES:
            return self._changeable_stage(stage, records, self._version(stage))
        return self._fixed_stage(stage, records, outside)

    def _fixed_stage(self, stage: Stage, records: list[Keyed], outside: list[Keyed]) -> list[Keyed]:
        match stage.kind:
            case "map":
                return [r.made(onward(r.record.value)) for r in records]
            case "parts" | "expand":
                many = ((r, parts(r.record.value)) for r in records)
                return [r.made(value, i) for r, values in many for i, value in enumerate(values)]
            case "control":
                return self._stages(stage.first, records, outside)
            case "key":
                return [
                    r.rekeyed(codec.encode(bucket(stage.number, r.record.value))) for r in records
                ]
            case "fold":
                return self._fold(stage, records)
            case "sum":
                return self._sum(stage, records)
            case "outside":
                return self._connect(stage, records, [r.with_a_key() for r in outside])
            case "meet":
                sides = {"even": list[Keyed](), "odd": list[Keyed]()}
                for r in records:
                    sides[shapes.parity(r.record.value)].append(r)
                met = self._stages(stage.first, sides["odd"], outside)
                return self._connect(stage, sides["even"], [r.with_a_key() for r in met])
            case _:
                return self._loop(stage, records, outside)

    def _loop(self, stage: Stage, records: list[Keyed], outside: list[Keyed]) -> list[Keyed]:
        left = []
        for round in range(stage.number):
            done = self._stages(stage.first, records, outside)
            if stage.kind == "early":
                left += [r.made(onward(r.record.value)) for r in records]
            else:
                left += [r for r in done if not goes_round(r.record.value)]
            again = [
                Keyed(
                    Record((*r.record.order[:4], 0), onward(r.record.value)),
                    None if stage.keyless else r.key,
                )
                for r in done
                if goes_round(r.record.value)
            ]
            if round + 1 == stage.number:
                self.refused += [(f"{stage.name} feedback", r.record.value) for r in again]
            # What comes from outside of the loop is there in its first round only.
            records, outside = again, []
        return left

    def _changeable_stage(self, stage: Stage, records: list[Keyed], logic: Any) -> list[Keyed]:
        match stage.kind:
            case "turn":
                return [r.made(logic(r.record.value)) for r in records]
            case "tally":
                return self._fold(stage, records, logic.init, logic.step)
            case "gather":
                return self._sum(stage, records, logic.on_notify)
            case _:
                return self._ring(stage, records, logic)

    def _version(self, stage: Stage) -> Any:
        return self.versions.at(stage.name, self._now)

    def _ring(self, stage: Stage, records: list[Keyed], logic: Any) -> list[Keyed]:
        """Apply the records of a time, then its timers in the order of their keys."""
        time = self._now
        states, pending, results = self.states[stage.name], self._timers[stage.name], list[Keyed]()

        def call(key: bytes, order: Order, *value: object, name: str = "") -> None:
            ask = Ask(key, time, name)
            function = logic.step if value else logic.on_timer
            states[key] = function(ask, deepcopy(states.get(key, logic.init())), *value)
            pending.apply(key, ask)
            own = Keyed(Record(order, None), key, key)
            results.extend(own.made(value, i) for i, value in enumerate(ask.emitted.get(None, [])))

        for _, r in _in_order(records, []):
            call(r.own, r.record.order, deepcopy(r.record.value))
        while pending.timers and pending.timers[0][0] == time:
            key, name, order = pending.pop(self.origins[stage.name])
            call(key, order, name=name)
        return results

    def _fold(
        self,
        stage: Stage,
        records: list[Keyed],
        init: Callable[[], object] = shapes.zero,
        step: Callable[[Any, Any], tuple[object, object]] = shapes.total,
    ) -> list[Keyed]:
        states, results = self.states[stage.name], list[Keyed]()
        for _, r in _in_order(records, []):
            value = deepcopy(r.record.value)
            states[r.own], result = step(deepcopy(states.get(r.own, init())), value)
            results.append(replace(r.made(result), lane=r.own))
        return results

    def _sum(
        self,
        stage: Stage,
        records: list[Keyed],
        total: Callable[[Any, Any], object] = sum_up,
    ) -> list[Keyed]:
        states, results = self.states[stage.name], []
        for _, r in _in_order(records, []):
            state: Any = states.get(r.own, [])
            states[r.own] = [*state, [r.record.value["k"], r.record.value["v"]]]  # type: ignore[index]
        for key in sorted({r.own for r in records}):
            hashed = int(BinSpace(0).hash_keys([key]).view("int64")[0])
            time = records[0].record.order[0]
            fired = Record((time, self.origins[stage.name], hashed, 1, 0), None)
            emitted: list[object] = []
            states[key] = total(_Context(emitted), states[key])
            results += [Keyed(fired, key, key).made(value, i) for i, value in enumerate(emitted)]
        return results

    def _connect(self, stage: Stage, left: list[Keyed], right: list[Keyed]) -> list[Keyed]:
        states, results = self.states[stage.name], []
        for side, r in _in_order(left, right):
            emitted: list[object] = []
            context = _Context(emitted)
            state = deepcopy(states.get(r.own, shapes.empty()))
            function = compare if side else add
            states[r.own] = function(context, state, deepcopy(r.record.value))
            results += [replace(r.made(value, i), lane=r.own) for i, value in enumerate(emitted)]
        return results


@dataclass(frozen=True)
class _Context:
    emitted: list[object]

    def emit(self, value: object) -> None:
        self.emitted.append(value)


def _in_order(left: list[Keyed], right: list[Keyed]) -> list[tuple[int, Keyed]]:
    """One round's records of one time as a stateful operator takes them."""
    both = [(0, r) for r in left] + [(1, r) for r in right]
    return sorted(both, key=lambda e: (e[1].record.order, e[0], codec.encode(e[1].record.value)))


def stateful(stages: tuple[Stage, ...]) -> Iterator[str]:
    """In the order in which a flow defines them."""
    for stage in stages:
        yield from stateful(stage.first)
        if stage.kind in ("fold", "tally", "sum", "gather", "ring", "outside", "meet"):
            yield stage.name


def changeable(stages: tuple[Stage, ...]) -> dict[str, str]:
    """The kind of each stage whose logic can change, by name."""
    kinds = {one.name: one.kind for one in all_stages(stages)}
    return {name: kind for name, kind in kinds.items() if kind in changing_logic.CHOICES}


def all_stages(stages: tuple[Stage, ...]) -> Iterator[Stage]:
    for stage in stages:
        yield stage
        yield from all_stages(stage.first)
