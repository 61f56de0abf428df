"""What a worker logs or prints waits for its loop, within a bound."""

from __future__ import annotations

import logging
import threading

import msgspec
import pytest

from meander.app.protocol.messages import Log
from meander.app.worker.remote_log import MOST, PRINTS, RemoteLog
from meander.schemas.log_lines import LineLogger


def test_what_is_logged_from_any_thread_and_printed_is_taken_in_order() -> None:
    roused = threading.Event()
    remote = RemoteLog(roused, logging.INFO)
    with remote.installed():
        logging.getLogger("a.module").warning("%d of %d", 1, 2)
        logging.getLogger("a.module").debug("too fine")
        print("half", end="")
        print(" a line\nand another")
        thread = threading.Thread(target=logging.getLogger("b").info, args=("from a thread",))
        thread.start()
        thread.join()
    logging.getLogger("a.module").warning("not any more")

    assert roused.is_set()
    assert [(line.logger, line.level, line.event, line.fields) for line in remote.lines()] == [
        ("a.module", logging.WARNING, "text_logged", {"text": "1 of 2"}),
        ("print", logging.INFO, "text_printed", {"text": "half a line"}),
        ("print", logging.INFO, "text_printed", {"text": "and another"}),
        ("b", logging.INFO, "text_logged", {"text": "from a thread"}),
    ]
    assert list(remote.lines()) == []


def test_a_line_keeps_its_event_fields_detail_and_traceback() -> None:
    remote = RemoteLog(threading.Event(), logging.INFO)
    with remote.installed():
        LineLogger("m").warning("stderr_written", "two\nlines", worker=1, seconds=0.5, last=True)
        LineLogger("m").error("worker_failed", exc_info=ValueError("no number"))

    first, second = remote.lines()
    assert (first.event, first.fields, first.detail) == (
        "stderr_written", {"worker": 1, "seconds": 0.5, "last": True}, "two\nlines"
    )  # fmt: skip
    assert (second.event, second.fields) == ("worker_failed", {})
    assert second.detail == "ValueError: no number"
    assert msgspec.msgpack.decode(first.to_bytes(), type=Log) == first


class HandClock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 50.0

    def now_ms(self) -> int:
        return int(self.now * 1000)

    def monotonic(self) -> float:
        return self.now

    def undisturbed(self) -> float:
        return self.monotonic()


def test_prints_beyond_the_rate_are_omitted_and_counted() -> None:
    clock, share = HandClock(), PRINTS // 4
    remote = RemoteLog(threading.Event(), logging.INFO, workers=4, clock=clock)
    with remote.installed():
        for number in range(share + 40):
            print(number)
        logging.getLogger("a.module").warning("a log line is no print")
        first = [*remote.lines()]
        clock.now += 1
        (omitted,) = remote.lines()
        print("the next second")
        (later,) = remote.lines()
        for number in range(share + 2):
            print(number)
    *_, last = remote.lines()

    texts = [line.fields["text"] for line in first]
    assert texts == [*map(str, range(share)), "a log line is no print"]
    assert (omitted.event, omitted.level) == ("prints_omitted", logging.WARNING)
    assert omitted.fields == {"lines": 40, "limit": f"{share} a second"}
    assert later.fields == {"text": "the next second"}
    assert last.fields["lines"] == 3, "the end of the worker reports them at once"


@pytest.mark.parametrize(
    ("workers", "each"), [(1, PRINTS), (3, PRINTS // 3), (PRINTS, 1), (2 * PRINTS, 1)]
)
def test_each_of_many_workers_sends_its_share_of_prints_and_one_line_at_least(
    workers: int, each: int
) -> None:
    remote = RemoteLog(threading.Event(), logging.INFO, workers=workers, clock=HandClock())
    with remote.installed():
        for number in range(each + 1):
            print(number)
    *sent, omitted = remote.lines()
    assert [line.fields["text"] for line in sent] == [*map(str, range(each))]
    assert omitted.fields == {"lines": 1, "limit": f"{each} a second"}


def test_lines_beyond_the_bound_are_counted_and_reported() -> None:
    remote = RemoteLog(threading.Event(), logging.INFO)
    for number in range(MOST + 3):
        remote.handle(record_of(number))

    *lines, last = remote.lines()
    assert [line.fields["text"] for line in lines] == [str(number) for number in range(3, MOST + 3)]
    assert (last.event, last.fields) == ("log_lines_lost", {"lines": 3})
    assert list(remote.lines()) == []


def test_a_line_is_not_lost_where_the_loop_takes_lines_while_it_is_logged() -> None:
    remote, taken = RemoteLog(threading.Event(), logging.INFO), list[Log]()

    class Slow:
        def __str__(self) -> str:
            taken.extend(remote.lines())
            return "slow"

    for number in range(MOST):
        remote.handle(record_of(number))
    remote.handle(record_of(Slow()))

    (last,) = remote.lines()
    assert [line.fields for line in taken] == [{"text": str(number)} for number in range(MOST)]
    assert last.fields == {"text": "slow"}


def record_of(text: object) -> logging.LogRecord:
    """A record of one logger alone: others may log from any thread."""
    return logging.LogRecord("chatty", logging.INFO, "", 0, "%s", (text,), None)
