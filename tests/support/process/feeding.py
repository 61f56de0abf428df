"""A thread feeds a real flow while a test acts on the flow."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def feeding(feed: Callable[[], None], pause: float = 0.0) -> Iterator[None]:
    """Call a function again and again while the block lasts, `pause` seconds between two calls."""
    over = threading.Event()

    def run() -> None:
        while not over.wait(pause):
            feed()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
