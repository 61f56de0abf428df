"""What a worker logs or prints waits for its loop, within a bound."""

from __future__ import annotations

import logging
import threading

from meander.app.worker.remote_log import MOST, RemoteLog


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
    assert [(line.logger, line.level, line.text) for line in remote.lines()] == [
        ("a.module", logging.WARNING, "1 of 2"),
        ("print", logging.INFO, "half a line"),
        ("print", logging.INFO, "and another"),
        ("b", logging.INFO, "from a thread"),
    ]
    assert list(remote.lines()) == []


def test_lines_beyond_the_bound_are_counted_and_said() -> None:
    remote = RemoteLog(threading.Event(), logging.INFO)
    with remote.installed():
        for number in range(MOST + 3):
            logging.getLogger("chatty").info("%d", number)

    *lines, last = remote.lines()
    assert [line.text for line in lines] == [str(number) for number in range(3, MOST + 3)]
    assert last.text.startswith("3 lines of this worker's log were lost")
