"""What becomes of a record that a user's function cannot take: never silence (I5)."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from meander import Flow, KafkaSink, KafkaSource
from meander.dataflow.operators.keyed.column_fold import ColumnFold
from meander.dataflow.operators.keyed.logic import LARGEST
from meander.dataflow.operators.retries import OnError
from meander.dataflow.operators.source.operator import MAX_ROWS
from meander.dataflow.simulation import in_memory
from meander.dataflow.simulation.in_memory import ListDeadLetters, ListSink, ListSource
from meander.schemas.errors import MeanderError
from meander.state.encoding import codec
from meander.state.encoding.codec import PLAIN
from meander.testing import TestFlow
from tests.support.sim.manual_flow import ManualFlow
from tests.support.sim.operator_bench import guard, records
from tests.support.sim.start import Start


def _failing() -> Exception:
    try:
        _divide(0)
    except ZeroDivisionError as error:
        return error
    raise AssertionError


def _divide(by: int) -> int:
    return 6 // by


# -- the policies


def test_dead_letter_keeps_record_reason_and_traceback_and_counts() -> None:
    errors, dead, counters = guard("dead_letter", "total")
    errors.failed(records(["a", "b"]), 1, _failing())
    ((operator, value, reason, trace),) = dead.letters
    assert (operator, value) == ("total", "b")
    assert reason.startswith("ZeroDivisionError: ")
    assert trace.startswith("Traceback") and "_divide" in trace
    assert counters == Counter(dead_letters=1)


def test_skip_counts() -> None:
    errors, dead, counters = guard("skip")
    errors.failed(records(["a"]), 0, _failing())
    assert (dead.letters, counters) == ([], Counter(skipped=1))


def test_fail_names_operator_place_reason_and_remedy_and_keeps_the_cause() -> None:
    errors, dead, _ = guard("fail", "total")
    error = _failing()
    with pytest.raises(MeanderError) as raised:
        errors.failed(records(["a", "b"], partition=3, first_offset=40), 1, error)
    said = str(raised.value)
    assert "operator 'total'" in said and "partition 3, offset 41" in said
    assert "ZeroDivisionError" in said and "on_error='dead_letter'" in said
    assert raised.value.__cause__ is error and dead.letters == []


# -- what a function may raise


class Wordless(Exception):
    """Has no text."""

    def __str__(self) -> str:
        raise RuntimeError


def _wordless(value: object) -> Any:
    raise Wordless


def _exits(value: object) -> Any:
    sys.exit(3)


def _cancelled(value: object) -> Any:
    raise asyncio.CancelledError("the service went away")


def _closed(value: object) -> Any:
    raise GeneratorExit


class TimedOut(BaseException):
    """As some libraries have: no Exception, so that a program does not catch it by chance."""


def _timed_out(value: object) -> Any:
    raise TimedOut(value)


def _interrupted(value: object) -> Any:
    raise KeyboardInterrupt


RAISING = {
    "map": lambda stream, raising, policy: stream.map(raising, on_error=policy),
    "filter": lambda stream, raising, policy: stream.filter(raising, on_error=policy),
    "flat_map": lambda stream, raising, policy: stream.flat_map(raising, on_error=policy),
    "inspect": lambda stream, raising, policy: stream.inspect(raising, on_error=policy),
    "key_by": lambda stream, raising, policy: stream.key_by(raising, on_error=policy),
    "fold": lambda stream, raising, policy: stream.key_by(str).fold(
        "total", int, lambda state, value: raising(value), on_error=policy
    ),
    "column fold": lambda stream, raising, policy: stream.key_by(str).fold(
        "total",
        ColumnFold((0,), lambda state, values: raising(values), ("int64",), "int64"),
        on_error=policy,
    ),
    "process": lambda stream, raising, policy: stream.key_by(str).process(
        "total", int, lambda context, state, value: raising(value), on_error=policy
    ),
    "init": lambda stream, raising, policy: stream.key_by(str).fold(
        "total", lambda: raising(None), lambda state, value: (state, value), on_error=policy
    ),
    "codec": lambda stream, raising, policy: stream.key_by(str).fold(
        "total", int, lambda state, value: (state, value), codec=Raising(raising), on_error=policy
    ),
    "timer": lambda stream, raising, policy: stream.key_by(str).process(
        "total",
        int,
        lambda context, state, value: context.timer(context.time_ms + 1) or 0,
        on_timer=lambda context, state: raising(state),
        on_error=policy,
    ),
    "notice": lambda stream, raising, policy: stream.key_by(str).process(
        "total",
        int,
        lambda context, state, value: context.notify() or 0,
        on_notify=lambda context, state: raising(state),
        on_error=policy,
    ),
    "split": lambda stream, raising, policy: stream.split(raising, "a", "b", on_error=policy)[0],
}


class Raising:
    """A user's codec that fails on every state."""

    name = "raising"

    def __init__(self, raising: Any) -> None:
        self._raising = raising

    def encode(self, state: object) -> bytes:
        self._raising(state)
        return b""

    def decode(self, data: bytes) -> object:
        return 0


def _raise(start: Start, kind: str, raising: Any, policy: OnError) -> tuple[ManualFlow, ListSink]:
    flow, sink = Flow("f", bins=1), ListSink()
    stream = flow.source(ListSource([[(ms, ms) for ms in range(1, 4)]]))
    RAISING[kind](stream, raising, policy).sink(sink)
    run = start(flow)
    run.run()
    return run, sink


WORDS = {
    _wordless: "Wordless: (its own text cannot be had: RuntimeError)",
    _exits: "SystemExit: 3",
    _cancelled: "CancelledError: the service went away",
    _closed: "GeneratorExit",
    _timed_out: "TimedOut: ",
}


@pytest.mark.parametrize("kind", RAISING)
@pytest.mark.parametrize("raising", WORDS)
def test_an_exception_without_a_text_and_an_exit_are_failures_like_others(
    start: Start, kind: str, raising: Any
) -> None:
    """I5."""
    run, sink = _raise(start, kind, raising, "dead_letter")
    reasons = [letter.reason for letter in run.dead_letters]
    assert len(reasons) == 3 and all(reason.startswith(WORDS[raising]) for reason in reasons)
    assert sink.values == []


@pytest.mark.parametrize("kind", RAISING)
@pytest.mark.parametrize("raising", WORDS)
def test_they_end_a_flow_with_a_sentence_when_asked(start: Start, kind: str, raising: Any) -> None:
    with pytest.raises(MeanderError) as ended:
        _raise(start, kind, raising, "fail")
    assert WORDS[raising] in str(ended.value)


@pytest.mark.parametrize("kind", RAISING)
def test_ctrl_c_is_no_functions_failure(start: Start, kind: str) -> None:
    with pytest.raises(KeyboardInterrupt):
        _raise(start, kind, _interrupted, "dead_letter")


# -- in a flow, at every kind of operator


class Strange:
    """No plain value."""


def _bad_step(state: int, value: int) -> tuple[int, int]:
    return state + value, 6 // value


def _bad_process(context: Any, state: int, value: int) -> int:
    context.emit(6 // value)
    return state + value


def _define(flow: Flow, kind: str, policy: OnError) -> ListSink:
    sink = ListSink()
    source = flow.source(ListSource([[(ms, ms % 3) for ms in range(1, 10)]]))
    match kind:
        case "map":
            source.map(_divide, on_error=policy).sink(sink)
        case "filter":
            source.filter(_divide, on_error=policy).sink(sink)
        case "flat_map":
            source.flat_map(lambda v: [6 // v], on_error=policy).sink(sink)
        case "inspect":
            source.inspect(_divide, on_error=policy).sink(sink)
        case "key_by":
            source.key_by(_divide, on_error=policy).sink(sink)
        case "exchange":
            keyed = source.map(lambda v: v or Strange()).key_by(lambda v: 0, on_error=policy)
            keyed.sink(sink)
        case "fold":
            keyed = source.key_by(lambda v: 0)
            keyed.fold("total", lambda: 0, _bad_step, on_error=policy).sink(sink)
        case "process":
            keyed = source.key_by(lambda v: 0)
            keyed.process("total", lambda: 0, _bad_process, on_error=policy).sink(sink)
        case _:
            raise AssertionError(kind)
    return sink


KINDS = ("map", "filter", "flat_map", "inspect", "key_by", "exchange", "fold", "process")


@pytest.mark.parametrize("kind", KINDS)
def test_every_operator_sets_aside_what_its_function_cannot_take(start: Start, kind: str) -> None:
    """I5: six of nine records are answered, three are set aside, none is missing."""
    flow = Flow("f", bins=1)
    sink = _define(flow, kind, "dead_letter")
    run = start(flow)
    run.run()
    assert len(sink.results) == 6
    assert run.counters["dead_letters"] == len(run.dead_letters) == 3
    assert run.counters["skipped"] == 0


@pytest.mark.parametrize("kind", KINDS)
def test_every_operator_skips_when_asked(start: Start, kind: str) -> None:
    flow = Flow("f", bins=1)
    sink = _define(flow, kind, "skip")
    run = start(flow)
    run.run()
    assert (len(sink.results), run.counters["skipped"], run.dead_letters) == (6, 3, [])


@pytest.mark.parametrize("kind", KINDS)
def test_every_operator_ends_the_flow_when_asked(start: Start, kind: str) -> None:
    flow = Flow("f", bins=1)
    _define(flow, kind, "fail")
    with pytest.raises(MeanderError, match="operator '[a-z_ ]+': its function failed"):
        start(flow).run()


# -- state that cannot be kept


def _run_fold(
    start: Start, step: Any, policy: OnError = "dead_letter"
) -> tuple[ManualFlow, ListSink]:
    flow, sink = Flow("f", bins=1), ListSink()
    source = flow.source(ListSource([[(ms, ms) for ms in range(1, 4)]]))
    source.key_by(lambda v: "k").fold("total", list, step, on_error=policy).sink(sink)
    run = start(flow)
    run.run()
    return run, sink


def _nothing() -> list[object]:
    return []


def _strange_at_two(state: list[object], value: int) -> tuple[list[object], int]:
    if value == 2:
        return [*state, Strange()], value
    return [*state, value], value


def test_a_state_that_would_not_come_back_equal_is_refused_by_operator_and_type(
    start: Start,
) -> None:
    """I4: the record is set aside and the state stays as it was."""
    run, sink = _run_fold(start, _strange_at_two)
    (letter,) = run.dead_letters
    assert (letter.operator, letter.value) == ("total", 2)
    assert "Strange" in letter.reason
    assert sink.values == [1, 3]
    assert run.state()["total"] == {codec.encode("k"): codec.encode([1, 3])}


def test_a_flow_that_asks_for_it_ends_at_a_state_that_cannot_be_kept(start: Start) -> None:
    with pytest.raises(MeanderError, match=r"operator 'total'.*Strange"):
        _run_fold(start, _strange_at_two, "fail")


LARGE = {"text": "x", "foreign text": "\u4e2d", "bytes": b"x"}


@pytest.mark.parametrize("made_of", LARGE.values(), ids=LARGE)
@pytest.mark.parametrize("packed", [lambda v: v, lambda v: (1, v), lambda v: [v]])
def test_a_state_that_could_not_move_is_refused_before_its_bin_does(
    start: Start, made_of: Any, packed: Callable[[object], object]
) -> None:
    """I4: whether a flow goes on must not depend on whether its bins move."""
    most = LARGEST // len(made_of if isinstance(made_of, bytes) else made_of.encode())

    def step(state: object, value: int) -> tuple[object, int]:
        return packed(made_of * (most if value == 2 else most - 100)), value

    run, sink = _run_fold(start, step)
    (letter,) = run.dead_letters
    assert (letter.operator, letter.value, sink.values) == ("total", 2, [1, 3])
    assert "its key 2, and a bin moves only with entries of up to 8,388,592; keep" in letter.reason


class Pairs:
    """A user's own codec, for pairs of a class of theirs."""

    name = "pairs"

    def encode(self, state: object) -> bytes:
        if not isinstance(state, Pair):
            raise TypeError(f"{state!r} is no pair")
        return f"{state.left},{state.right}".encode()

    def decode(self, data: bytes) -> object:
        left, right = data.decode().split(",")
        return Pair(int(left), int(right))


class Pair:
    """A state that only its own codec can keep."""

    def __init__(self, left: int, right: int) -> None:
        self.left, self.right = left, right


def _pair() -> object:
    return Pair(0, 0)


def _pair_step(state: object, value: int) -> tuple[object, int]:
    assert isinstance(state, Pair)
    state.left += value
    if value == 2:
        return "no pair", 0
    state.right -= value
    return state, state.left


class Lines:
    """A user's codec, whose bytes are none for an even number."""

    name = "lines"

    def __init__(self, made: Callable[[str], object]) -> None:
        self._made = made

    def encode(self, state: object) -> Any:
        return str(state).encode() if int(str(state)) % 2 else self._made(str(state))

    def decode(self, data: bytes) -> object:
        return int(data)


@pytest.mark.parametrize(
    ("made", "says"),
    [(str, "str"), (lambda text: bytearray(text, "ascii"), "bytearray"), (lambda _: None, "None")],
)
def test_a_codec_that_gives_no_bytes_is_refused_before_a_bin_moves(
    start: Start, made: Any, says: str
) -> None:
    """I4: whether a flow goes on must not depend on whether its bins move."""
    flow, sink = Flow("f", bins=1), ListSink()
    keyed = flow.source(ListSource([[(ms, ms) for ms in range(1, 4)]])).key_by(lambda v: "k")
    keyed.fold("newest", lambda: 1, lambda _, v: (v, v), codec=Lines(made)).sink(sink)
    run = start(flow)
    run.run()
    (letter,) = run.dead_letters
    assert (letter.operator, letter.value, sink.values) == ("newest", 2, [1, 3])
    assert f"codec 'lines': its encode returned {says}" in letter.reason
    assert run.state()["newest"] == {codec.encode("k"): b"3"}


def test_a_users_own_codec_keeps_what_plain_values_cannot(start: Start) -> None:
    """I4: and a state that it refuses leaves the one before untouched."""
    flow, sink = Flow("f", bins=1), ListSink()
    source = flow.source(ListSource([[(ms, ms) for ms in range(1, 4)]]))
    keyed = source.key_by(lambda v: "k")
    keyed.fold("total", _pair, _pair_step, codec=Pairs()).sink(sink)
    run = start(flow)
    run.run()
    assert sink.values == [1, 4]
    assert run.state()["total"] == {codec.encode("k"): b"4,-4"}
    assert [letter.value for letter in run.dead_letters] == [2]
    assert PLAIN.name != Pairs.name


def test_operators_rest_while_dead_letters_lack_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """I6: what waits to be durable is what had room, and the failures of one turn."""
    most, add = [0], ListDeadLetters.add

    def counted(dead: ListDeadLetters, *letter: Any) -> None:
        add(dead, *letter)
        most[0] = max(most[0], len(dead.waiting))

    monkeypatch.setattr(ListDeadLetters, "add", counted)
    monkeypatch.setattr(in_memory, "SLOW_DEAD_LETTERS", 0.002)
    flow = Flow("f")
    flow.source(KafkaSource("in")).map(lambda value: value / 0).sink(KafkaSink("out"))
    with TestFlow(flow, workers=1) as run:
        run.feed("in", *range(20_000))
        run.run()
        assert len(run.dead_letters) == 20_000
    assert most[0] <= in_memory.MAX_WAITING_DEAD_LETTERS + MAX_ROWS
