"""What random flows need: databases for their states, and sight of what they hold."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from meander.dataflow.backpressure import inflight
from meander.dataflow.checkpoint import checkpoint_writer, in_flight_restore, state_writer
from meander.dataflow.operators.keyed import operator
from meander.dataflow.operators.keyed.timer_queue import TIMER_BYTES
from meander.dataflow.progress.capability import Capability
from meander.state.layers import layer_writer, parts
from meander.state.store import timer_rows
from meander.state.store.store import Databases
from tests.support.property import shrinking


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks hold few entries, so that layers of few keys have tables; and bundles little, so that
    some bins have more to be put into a layer."""
    monkeypatch.setattr(layer_writer, "CHUNK_ENTRIES", 8)
    monkeypatch.setattr(state_writer, "SMALL_DELTA", 60)
    monkeypatch.setattr(state_writer, "BYTES", 200)
    # What is in flight lies in many pieces, of which some are asked for at once.
    monkeypatch.setattr(checkpoint_writer, "ROWS", 2)
    # Most checkpoints, and some pieces, are larger than a record.
    monkeypatch.setattr(parts, "PART_BYTES", 300)
    monkeypatch.setattr(in_flight_restore, "AHEAD_BYTES", 400)
    # Next to nothing may be in the flow, where no other bound is asked for.
    monkeypatch.setattr(inflight, "LEAST_BYTES", 200)
    # A turn writes little, so that states change meanwhile.
    monkeypatch.setattr(state_writer, "ENTRIES", 1)


@pytest.fixture(autouse=True)
def few_near_timers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two timers of an operator are near, where nothing else is asked for; the others are rows."""
    monkeypatch.setattr(operator, "NEAR_BYTES", 2 * TIMER_BYTES)
    monkeypatch.setattr(timer_rows, "PENDING_ROWS", 3)


@pytest.fixture(autouse=True)
def seen_at_once(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a random case says first."""
    capture = request.config.pluginmanager.getplugin("capturemanager")
    if capture is not None:
        monkeypatch.setattr(shrinking, "uncaptured", capture.global_and_fixture_disabled)


@pytest.fixture(scope="module")
def databases(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Databases]:
    databases = Databases(tmp_path_factory.mktemp("stores"), 32 << 20)
    yield databases
    databases.close()


@pytest.fixture
def capabilities(monkeypatch: pytest.MonkeyPatch) -> list[Capability]:
    """Every capability that is made while the test lasts."""
    made: list[Capability] = []
    begin = Capability.__init__

    def noted(self: Capability, *words: object) -> None:
        begin(self, *words)  # type: ignore[arg-type]
        made.append(self)

    monkeypatch.setattr(Capability, "__init__", noted)
    return made
