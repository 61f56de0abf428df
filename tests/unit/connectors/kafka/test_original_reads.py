"""Reads of original records: what stops one reaches the thread that asked."""

from __future__ import annotations

import threading
from collections.abc import Iterable

import pytest

from meander.connectors.kafka.original_reads import OriginalReads
from meander.connectors.kafka.original_records import Found, OriginalReader
from meander.schemas.dead_letter import RecordPlace

PLACE = RecordPlace("orders", "", 0, 0)


def test_unexpected_error_is_raised_and_later_reads_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(_: OriginalReader, places: Iterable[RecordPlace]) -> Found:
        raise ZeroDivisionError(str(next(iter(places)).topic))

    monkeypatch.setattr(OriginalReader, "read", stop)
    wakeup = threading.Event()
    reads = OriginalReads({}, wakeup)
    for _ in range(2):
        wakeup.clear()
        reads.ask([PLACE])
        assert wakeup.wait(10), "the loop learns of it"
        with pytest.raises(ZeroDivisionError, match="orders"):
            reads.answer()
        assert not reads.busy
