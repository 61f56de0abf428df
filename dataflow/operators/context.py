"""The operator context: the services of a worker for an operator."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from meander.dataflow.backpressure.inflight import InFlightBytes
from meander.dataflow.backpressure.throttle import MoveThrottle
from meander.dataflow.control.reports import SendReport
from meander.dataflow.interfaces import Clock
from meander.dataflow.operators.buffer.buffer import SpillBuffer
from meander.dataflow.progress.progress import Progress
from meander.state.keys.bins import BinSpace
from meander.state.keys.ids import LayerId, WorkerId
from meander.state.layers.retention import Retention
from meander.state.layers.topic import StateTopic
from meander.state.times.antichain import Antichain


@dataclass(frozen=True, slots=True)
class OperatorContext:
    """A context that holds all that an operator needs besides its ports and functions."""

    name: str
    """The name of the operator in its flow."""
    me: WorkerId
    clock: Clock
    progress: Progress
    control: Callable[[], Antichain]
    """Returns the control frontier, in times of the operator's scope."""
    counters: Counter[str]
    report: SendReport
    inflight: InFlightBytes
    throttle: MoveThrottle
    topic: StateTopic
    retention: Retention
    next_layer: Callable[[], LayerId]
    space: BinSpace
    max_waiting: int
    """The most bytes of waiting records in the memory of the operator."""
    fires_timers: Callable[[], bool]
    """Returns whether the end of a bounded run fires the timers behind its last record."""
    furthest: Callable[[], int | None]
    """Returns the furthest time that a source has read; None once all sources have ended."""
    buffer: Callable[[str], SpillBuffer]
    """Opens a spill buffer of the operator by its name."""
