"""The flows that random cases run: each keyed by "k", with functions that show every disorder.

Stands alone, so that its text can also be run by real workers that have no tests.
"""

from __future__ import annotations

import asyncio
from typing import Any

from meander import KeyedStream, Retry, columns


def define(  # noqa: C901 (one case per kind)
    kind: str, keyed: KeyedStream[Any], other: KeyedStream[Any] | None
) -> KeyedStream[Any]:
    match kind:
        case "chain":
            return keyed.fold("a", zero, total).map(double).fold("b", empty, trail)
        case "rekey":
            split = keyed.fold("a", zero, total).flat_map(parts)
            return split.key_by(third).fold("b", empty, trail)
        case "timers":
            told = keyed.process("a", empty, remember, ring)
            return told.process("b", empty, follow, ring)
        case "connect":
            assert other is not None
            return keyed.connect(other, "a", empty, remember, answer, ring)
        case "sides":
            even, odd = keyed.split(parity, "even", "odd")
            told = even.process("a", empty, sort_out, ring, side=["rest"])
            both = told.connect(told.side("rest"), "b", empty, remember, answer, ring)
            return both.connect(odd, "c", empty, remember, answer, ring)
        case "columns":
            return keyed.fold("a", columns.mean("v"))
        case "faulty":
            told = keyed.map(holed).process("a", empty, moody, sulky)
            return told.fold("b", columns.mean("v"))
        case "alone":
            counts = keyed.fold("a", zero, total, colocate=False).map(double)
            met = counts.connect(keyed, "b", empty, remember, answer, ring)
            return met.fold("c", empty, trail, colocate=False)
        case "flaky":
            again = Retry(times=50, wait=0.002)
            totals = keyed.map(Flaky(same), on_error=again)
            asked = totals.fold("a", zero, Flaky(total), on_error=again).map_async(
                "ask", Asked(double), concurrency=3, order="any", on_error=again
            )
            return asked.process("b", empty, Flaky(remember), Flaky(ring), on_error=again)
        case "arrival":
            return keyed.fold("a", int, number, order="processing")
        case _:
            assert kind == "forgetting", kind
            return forgetting(keyed)


def forgetting(keyed: KeyedStream[Any]) -> KeyedStream[Any]:
    told = keyed.process("a", empty, forgetful, drowsy, ttl=LONG / 1000)
    counted = told.fold("b", zero, total, ttl=SHORT / 1000)
    once = counted.process("c", empty, renewed, ttl=LONG / 1000, refresh="create")
    return once.fold("d", columns.mean("v"), ttl=LONG / 1000)


SHORT, LONG = 20, 500
"""Times to live in milliseconds."""


class Refused(Exception):
    """A function cannot take its record."""


class Flaky:
    """A function that fails at every third call, once it has done all its work."""

    def __init__(self, function: Any) -> None:
        self._function, self._calls = function, 0

    def __call__(self, *given: Any) -> Any:
        result = self._function(*given)
        self._calls += 1
        if self._calls % 3 == 0:
            raise Refused
        return result


class Asked(Flaky):
    """A coroutine function that also waits: some calls end before earlier ones."""

    async def __call__(self, *given: Any) -> Any:
        await asyncio.sleep(0.001 * (self._calls % 4))
        return super().__call__(*given)


def same(value: Any) -> object:
    return value


def key(value: Any) -> object:
    return value["k"]


def third(value: Any) -> object:
    return value["n"] % 3


def zero() -> object:
    return (0, 0)


def empty() -> object:
    return []


def total(state: Any, value: Any) -> tuple[object, object]:
    n, sum = state[0] + 1, (state[1] * 31 + value["v"]) % 1_000_003
    return (n, sum), {"k": value["k"], "n": n, "v": sum}


def double(value: Any) -> object:
    return {**value, "v": 2 * value["v"]}


def trail(state: Any, value: Any) -> tuple[object, object]:
    state.append(value["v"])
    del state[:-3]
    return state, {**value, "trail": list(state)}


def parts(value: Any) -> list[object]:
    return [{**value, "v": value["v"] + i} for i in range(value["n"] % 3)]


def remember(context: Any, state: Any, value: Any) -> object:
    state.append(value["v"])
    context.emit({"k": value["k"], "v": len(state)})
    for n in range(value["v"] % 4):
        context.timer(context.time_ms + 1 + (5 * value["v"] + 13 * n) % 40)
    name_timers(context, value["v"])
    return state


def name_timers(context: Any, v: int) -> None:
    """Set timers with names anew, near and far, and cancel some."""
    context.timer(context.time_ms + 5 + 7 * v % 60, name=f"n{v % 3}")
    if v % 4 == 1:
        context.timer(context.time_ms + FAR_MS + v % 50, name=f"far{v % 2}")
    if v % 5 < 2:
        context.cancel(f"n{(v + 1) % 3}")
    if v % 5 == 3:
        context.cancel(f"far{(v + 1) % 2}")


FAR_MS = 3000
"""Behind all records, so that such timers travel with every move."""


def number_of(name: str | None) -> int:
    """A number for the name of a timer."""
    return 0 if name is None else 100 + sum(name.encode())


def follow(context: Any, state: Any, value: Any) -> object:
    """Sets no timer, though it might."""
    state, told = trail(state, value)
    context.emit(told)
    return state


def answer(context: Any, state: Any, value: Any) -> object:
    if state:
        context.emit({"k": value["k"], "v": state.pop(0) - value["v"]})
    return state


def parity(value: Any) -> str:
    return "odd" if value["v"] % 2 else "even"


def sort_out(context: Any, state: Any, value: Any) -> object:
    state.append(value["v"])
    for part in range(value["v"] % 3):
        context.emit({"k": value["k"], "v": part}, to="rest" if value["v"] % 4 else None)
    context.emit({"k": value["k"], "v": len(state)})
    context.timer(context.time_ms + 4)
    return state[-5:]


def ring(context: Any, state: Any) -> object:
    context.emit({"k": context.key, "v": -len(state) - number_of(context.timer_name)})
    if len(state) % 2:
        context.timer(context.time_ms + 3)
    if len(state) % 3 == 1:
        context.cancel("n2")
    return state[1:]


def mean(state: Any, value: Any) -> tuple[object, object]:
    n, sum = state[0] + 1, state[1] + float(value["v"])
    return (n, sum), sum / n


def mean_of_numbers(state: Any, value: Any) -> tuple[object, object]:
    if not isinstance(value.get("v"), int):
        raise Refused
    return mean(state, value)


def holed(value: Any) -> object:
    if value["v"] % 7 == 3:
        raise Refused
    return {"k": value["k"], "v": value["v"]}


def unwritable(value: Any) -> bool:
    return int(value) % 4 == 1


def moody(context: Any, state: Any, value: Any) -> object:
    """Fails half-way: the state has changed, a result and a timer have been left."""
    state.append(value["v"])
    context.emit([value, {"k": value["k"]}, {"k": value["k"], "v": None}][value["v"] % 3])
    context.timer(context.time_ms + 5 + 7 * value["v"] % 40)
    name_timers(context, value["v"])
    if value["v"] % 5 == 2:
        raise Refused
    return state


def sulky(context: Any, state: Any) -> object:
    """Fails half-way too, so that its key keeps what it has until the next timer."""
    state.append(0)
    context.emit({"k": context.key, "v": len(state)})
    if len(state) % 2:
        context.timer(context.time_ms + 3)
    if len(state) % 3 == 2:
        raise Refused
    return state[2:]


def forgetful(context: Any, state: Any, value: Any) -> object:
    """Forgets its key, leaves the state None, or keeps the state as it is."""
    state = state or []
    context.emit({"k": value["k"], "v": len(state)})
    context.timer(context.time_ms + 1 + 7 * value["v"] % 60)
    if value["v"] % 5 == 0:
        context.forget()
    if value["v"] % 3 == 0:
        return None
    return state if value["v"] % 4 == 1 else [*state, value["v"]][-4:]


def drowsy(context: Any, state: Any) -> object:
    """Meets a new state where the key was forgotten; it may forget the key itself."""
    state = state or []
    context.emit({"k": context.key, "v": -len(state)})
    if len(state) % 2:
        context.forget()
    return state[1:]


def renewed(context: Any, state: Any, value: Any) -> object:
    state.append(value["v"])
    context.emit({"k": value["k"], "v": state[0] + len(state)})
    return state


def number(state: Any, value: Any) -> tuple[object, object]:
    return state + 1, state + 1
