"""The fixture `start`, as tests see it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Protocol

from meander.dataflow.api.flow import Flow
from meander.dataflow.control.command import MoveBins
from meander.dataflow.control.timestamp_overrides import NO_OVERRIDES, OverrideHistory
from tests.support.sim.manual_flow import ManualFlow

NAMESPACES = count()


class Start(Protocol):
    def __call__(
        self,
        flow: Flow,
        workers: int = 2,
        commands: Sequence[MoveBins] = (),
        past: OverrideHistory = NO_OVERRIDES,
    ) -> ManualFlow: ...
