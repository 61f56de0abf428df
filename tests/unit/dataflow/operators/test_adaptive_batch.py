"""I6: what leaves an exchange at once is bounded by bytes, whatever functions make of their input,
and what no link takes is its record's failure."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meander import Flow
from meander.dataflow.interfaces import Frame
from meander.dataflow.operators import exchange
from meander.dataflow.operators.adaptive_batch import BYTES, AdaptiveBatch
from meander.dataflow.records import packing
from meander.dataflow.records.batch import Batch
from meander.dataflow.records.packing import decode_values, encoded_size, join_packed, pack
from meander.dataflow.simulation.in_memory import ListSink
from meander.dataflow.simulation.simulator import SimClock, SimLinks
from meander.dataflow.wire import MAX_FRAME, MESSAGE_BYTES, RECORD_BYTES
from meander.schemas.errors import MeanderError
from meander.state.encoding.codec import UnencodableError
from meander.state.keys.ids import WorkerId
from tests.support.sim.manual_flow import ManualSource
from tests.support.sim.start import Start

KEYS, DOCUMENT = 256, 20_000


class Sent:
    """The frames that have been sent, by their size."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.largest, send = 0, SimLinks.send

        def watched(links: SimLinks, peer: WorkerId, frame: Frame) -> None:
            self.largest = max(self.largest, sum(map(len, frame)))
            send(links, peer, frame)

        monkeypatch.setattr(SimLinks, "send", watched)


def _copies(documents: int) -> list[Any]:
    return [(n, "x" * DOCUMENT) for n in range(documents)]


def _spread(context: Any, state: int, document: Any) -> int:
    for key in range(KEYS):
        context.emit((key, document))
    return state


SPREAD: dict[str, Any] = {
    "flat_map": lambda stream: stream.flat_map(lambda doc: [(key, doc) for key in range(KEYS)]),
    "process": lambda stream: stream.key_by(lambda doc: doc[0] % 2).process("p", int, _spread),
}


@pytest.mark.parametrize("spread", SPREAD.values(), ids=SPREAD)
def test_a_document_for_many_keys_leaves_in_messages_that_a_link_takes(
    start: Start, monkeypatch: pytest.MonkeyPatch, spread: Any
) -> None:
    """I6: 150 MB are ready at once, of which each of two workers gets a half; and I7."""
    sent = Sent(monkeypatch)
    source, sink = ManualSource(), ListSink()
    flow = Flow("f", bins=4)
    keyed = spread(flow.source(source)).key_by(lambda pair: pair[0])
    keyed.fold("n", int, lambda n, pair: (n + 1, n + 1)).sink(sink)
    run = start(flow, workers=2)
    source.give(0, *((1_000, document) for document in _copies(30)))
    run.finish(source)
    assert sorted(map(int, map(str, sink.values))) == sorted([*range(1, 31)] * KEYS)
    assert MESSAGE_BYTES // 2 < sent.largest <= MESSAGE_BYTES + 10_000 < MAX_FRAME


def test_what_functions_give_in_one_turn_is_bounded_by_bytes(start: Start) -> None:
    """I6: after the first turn, in which nothing is known of a function, and but for one record."""
    source, sink = ManualSource(), ListSink()
    flow = Flow("f", bins=4)
    spread = (
        flow.source(source)
        .map(lambda doc: doc)
        .flat_map(lambda doc: [(key, doc) for key in range(KEYS)])
    )
    spread.key_by(lambda pair: pair[0]).fold("n", int, lambda n, pair: (n + 1, n + 1)).sink(sink)
    run = start(flow, workers=2)
    source.give(0, *((1_000, document) for document in _copies(1)))
    run.run_until_idle()
    source.give(0, *((2_000 + n, document) for n, document in enumerate(_copies(30))))
    most = 0
    for _ in range(3_000):
        run.act()
        for worker in run.workers:
            for port in worker.parts.operators.inputs.values():
                waits = (message.payload for message in port.waiting)
                most = max(most, sum(o.estimated_weight for o in waits if isinstance(o, Batch)))
    run.finish(source)
    assert len(sink.results) == 31 * KEYS
    assert KEYS * DOCUMENT < most < BYTES + 2 * KEYS * (DOCUMENT + 300)


@pytest.mark.parametrize("policy", ["dead_letter", "skip", "fail"])
@pytest.mark.parametrize("workers", [1, 2])
def test_a_record_that_no_link_takes_is_its_own_failure_wherever_it_would_go(
    start: Start, monkeypatch: pytest.MonkeyPatch, policy: Any, workers: int
) -> None:
    monkeypatch.setattr(exchange, "RECORD_BYTES", 1_000)
    monkeypatch.setattr(packing, "PIECE_BYTES", 1_000)
    source, sink = ManualSource(), ListSink()
    flow = Flow("f", bins=4)
    texts = flow.source(source).map(lambda size: "x" * size)
    texts.key_by(len, on_error=policy).fold("n", int, lambda n, text: (n, len(text))).sink(sink)
    run = start(flow, workers)
    source.give(0, *((1_000 + n, size) for n, size in enumerate([1, 990, 2_000, 994, 5, 999])))
    if policy == "fail":
        with pytest.raises(MeanderError, match=r"'key_by exchange'.* a link between workers takes"):
            run.finish(source)
        return
    run.finish(source)
    assert sorted(map(int, map(str, sink.values))) == [1, 5, 990]
    found = run.counters["skipped"] if policy == "skip" else len(run.dead_letters)
    assert found == 3


def test_the_largest_record_that_an_exchange_takes_fits_a_real_link(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = Sent(monkeypatch)
    source, sink = ManualSource(), ListSink()
    flow = Flow("f", bins=4, max_waiting=1 << 30)
    texts = flow.source(source).map(lambda n: (n, "x" * (RECORD_BYTES - 20 + n)))
    texts.key_by(lambda pair: pair[0] % 2).fold("n", int, lambda n, pair: (n, 1)).sink(sink)
    run = start(flow, workers=4)
    source.give(0, *((1_000 + n, n) for n in (1, 100)))
    run.finish(source)
    assert (sink.values, len(run.dead_letters)) == ([1], 1)
    assert RECORD_BYTES < sent.largest < MAX_FRAME


def test_a_simulated_link_takes_no_more_than_a_real_one() -> None:
    with pytest.raises(MeanderError, match=r"are more than the bound of 67,108,864 bytes"):
        SimLinks(None, WorkerId(0)).send(WorkerId(1), [bytes(MAX_FRAME), b"x"])  # type: ignore[arg-type]


# -- pieces


class Odd:
    """No plain value."""


sized = st.one_of(
    st.integers(), st.text(max_size=20), st.integers(0, 300).map(lambda n: "x" * n), st.builds(Odd)
)


@given(st.lists(sized, max_size=60), st.integers(0, 5), st.booleans())
def test_pieces_hold_all_that_can_be_encoded_in_order_and_within_their_bound(
    values: list[object], first: int, keyed: bool
) -> None:
    first = min(first, len(values))
    keys = [b"k" * (n % 7) for n in range(len(values))] if keyed else None
    refused: list[int] = []

    def refuse(row: int, error: Exception) -> None:
        assert isinstance(error, UnencodableError)
        refused.append(row)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packing, "PIECE_BYTES", 200)
        found = list(pack(values, refuse, first, keys))
    rows = [row for piece in found for row in piece.rows]
    assert refused == [n for n in range(first, len(values)) if isinstance(values[n], Odd)]
    assert sorted([*rows, *refused]) == list(range(first, len(values))) and rows == sorted(rows)
    assert all(len(piece.rows) == 1 or piece.size <= 200 for piece in found)
    assert decode_values(join_packed(found)) == [values[row] for row in rows]
    beside = 0 if keys is None else sum(len(keys[row]) for row in rows)
    assert sum(piece.size for piece in found) == sum(len(p.data) for p in found) + beside
    assert encoded_size(values) > 0 or not values


class _BusyMachine(SimClock):
    """A clock of a machine on which each slice waits for a core."""

    waited = 0.0

    def wait_for_core(self, seconds: float) -> None:
        self.waited += seconds
        self.advance(seconds)

    def undisturbed(self) -> float:
        return self.monotonic() - self.waited


def test_a_slice_that_waits_for_a_core_is_followed_by_a_larger_one() -> None:
    """I7."""
    batch = AdaptiveBatch(clock := _BusyMachine(), max_rows=2000)
    for _ in range(10):
        with batch.measure(batch.rows):
            clock.advance(0.001 + 0.00001 * batch.rows)
            clock.wait_for_core(0.1)
    assert 600 < batch.rows <= 1000
