"""Flows on simulated workers for tests, over one state database each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import settings

from meander.dataflow.api.flow import Flow
from meander.dataflow.control.command import MoveBins
from meander.dataflow.control.timestamp_overrides import NO_OVERRIDES, OverrideHistory
from meander.state.store.store import Databases
from tests.support.sim.manual_flow import ManualFlow
from tests.support.sim.start import NAMESPACES, Start

settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")


@pytest.fixture(scope="session")
def shared_databases(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Databases]:
    path: Path = tmp_path_factory.mktemp("states")
    databases = Databases(path, 32 << 20)
    yield databases
    databases.close()


@pytest.fixture
def start(shared_databases: Databases) -> Iterator[Start]:
    """Put a flow on simulated workers, to be driven by hand or to its end."""
    with ExitStack() as opened:

        def begin(
            flow: Flow,
            workers: int = 2,
            commands: Sequence[MoveBins] = (),
            past: OverrideHistory = NO_OVERRIDES,
        ) -> ManualFlow:
            run = ManualFlow(flow, shared_databases, next(NAMESPACES), workers, commands, past)
            return opened.enter_context(run)

        yield begin
