"""Faults as data: each tells a simulation what fails, and when.

A list of `At(fault, ...)` belongs to a run as its seed does. The same list with the same seed gives
the same schedule, and a run succeeds only after each fault has struck. A *step* is one scheduling
decision: a turn of a worker or the coordinator, arriving frames, or an advance of time.

>>> At(Pause(worker=1, steps=200), records=10)
At(fault=Pause(worker=1, steps=200), records=10)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, fields, replace
from functools import wraps
from typing import ParamSpec, TypeVar

from meander.dataflow.api.flow import Flow
from meander.dataflow.api.nodes import (
    AsyncMapNode,
    FoldLogic,
    IngestNode,
    KeyedNode,
    Logic,
    Node,
    ProcessLogic,
    SplitNode,
    StepsNode,
    TableJoinLogic,
)
from meander.dataflow.joins.interval import IntervalJoin
from meander.dataflow.operators.async_map import CoroutineFunction
from meander.dataflow.operators.keyed.column_fold import ColumnStep
from meander.dataflow.operators.stateless import Filter, FlatMap, Inspect, KeyBy, Map, Step
from meander.dataflow.simulation.simulator import Command
from meander.dataflow.windows.columnar import ColumnarWindows
from meander.schemas.errors import SetupError
from meander.state.encoding.columns import Column, Columns

P = ParamSpec("P")
T = TypeVar("T")


class Fault:
    """A fault of a simulated flow, or a command of its user."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Pause(Fault):
    """A fault that stops the turns of a worker for a number of steps. -1 is the coordinator."""

    worker: int
    steps: int


@dataclass(frozen=True, slots=True)
class Slow(Fault):
    """A fault that stops the frames from one worker to another for a number of steps."""

    sender: int
    receiver: int
    steps: int


@dataclass(frozen=True, slots=True)
class Crash(Fault):
    """A fault that kills the process of a worker. It ends the run with an error: a simulated flow
    does not restart from a checkpoint."""

    worker: int


@dataclass(frozen=True, slots=True)
class Raise(Fault):
    """A fault that makes the next calls of an operator's function raise `Planted`, on any
    worker."""

    operator: str
    calls: int = 1


@dataclass(frozen=True, slots=True)
class Jump(Fault):
    """A fault that sets the wall clock forwards or backwards."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Control(Fault):
    """A fault that writes a record to the control topic: a command, or malformed bytes.

    >>> Control({"type": "migrate", "id": "m1", "bins": "all", "worker": 1}).command["worker"]
    1
    """

    command: Mapping[str, object] | bytes


class Planted(Exception):
    """An error that a function raises because of a fault."""


@dataclass(frozen=True, slots=True, repr=False)
class At:
    """A time of a fault or a command: a step, a number of simulated seconds, or a number of read
    records. Raises SetupError unless it has exactly one."""

    fault: Fault | Command
    step: int | None = None
    seconds: float | None = None
    records: int | None = None

    def __post_init__(self) -> None:
        if sum(when is not None for when in (self.step, self.seconds, self.records)) != 1:
            raise SetupError(f"fault {self.fault}", "it has not exactly one time to strike",
                             "name a step, seconds or records")  # fmt: skip

    def __repr__(self) -> str:
        known = ((f.name, getattr(self, f.name)) for f in fields(self))
        return f"At({', '.join(f'{name}={value!r}' for name, value in known if value is not None)})"

    def due(self, step: int, seconds: float, records: int) -> bool:
        """Return whether the fault is due."""
        if self.step is not None:
            return step >= self.step
        if self.seconds is not None:
            return seconds >= self.seconds
        return self.records is not None and records >= self.records

    @property
    def waits(self) -> bool:
        """Return whether it waits until the submission of another command has ended. Commands keep
        their order, and a joining worker may read the number of records."""
        return (
            self.records is not None
            or isinstance(self.fault, Control)
            or not isinstance(self.fault, Fault)
        )


@dataclass(slots=True)
class PendingFaults:
    """A queue of the faults that have not struck yet."""

    left: list[At]

    def due(self, step: int, seconds: float, records: int, *, submitting: bool) -> Sequence[At]:
        """Remove and return due faults in the order of the list. While the submission of a command
        runs (`submitting`), return only faults that do not wait for it."""
        due = [
            at
            for at in self.left
            if at.due(step, seconds, records) and not (submitting and at.waits)
        ]
        if due:
            self.left = [at for at in self.left if at not in due]
        return due


@dataclass(slots=True)
class FaultInjector:
    """An injector that makes functions of a flow raise."""

    armed: Counter[str] = field(default_factory=Counter)
    names: set[str] = field(default_factory=set)
    """The operators that have a function."""

    def instrument(self, flow: Flow) -> Flow:
        """Return a copy of a flow with wrapped functions."""
        instrumented = copy(flow)
        instrumented.nodes = [self._instrument_node(node) for node in flow.nodes]
        instrumented.wrap = self._instrument_node
        return instrumented

    def arm(self, operator: str, calls: int) -> None:
        """Make the next calls of an operator raise. Raises SetupError for an unknown operator."""
        if operator not in self.names:
            raise SetupError(f"operator {operator!r}", "the flow has no such function",
                             f"name one of {', '.join(sorted(self.names))}")  # fmt: skip
        self.armed[operator] += calls

    def _instrument_node(self, node: Node) -> Node:
        match node:
            case StepsNode(steps=steps):
                return replace(node, steps=tuple(map(self._step, steps)))
            case SplitNode(name=name, choose=choose):
                self.names.add(name)
                return replace(node, choose=self._wrap(name, choose))
            case AsyncMapNode(name=name, function=function):
                self.names.add(name)
                return replace(node, function=self._wrap_coroutine(name, function))
            case IngestNode(name=name, read=read):
                self.names.add(name)
                return replace(node, read=self._wrap(name, read))
            case KeyedNode(name=name, logic=logic):
                self.names.add(name)
                return replace(node, logic=self._logic(name, logic))
            case _:
                return node

    def _step(self, step: Step) -> Step:
        self.names.add(step.name)
        match step:
            case FlatMap():
                return replace(step, function=self._wrap(step.name, step.function))
            case Map() | Filter() | Inspect() | KeyBy():
                return replace(step, function=self._wrap(step.name, step.function))
            case _:
                return step

    def _logic(self, name: str, logic: Logic) -> Logic:
        match logic:
            case FoldLogic(step=step):
                return replace(logic, step=self._wrap(name, step))
            case IntervalJoin(step=step) | TableJoinLogic(step=step):
                return replace(logic, step=self._wrap(name, step))
            case ProcessLogic():
                wrapped = tuple(self._wrap(name, on_value) for on_value in logic.on_values)
                timed = logic.on_timer and self._wrap(name, logic.on_timer)
                notified = logic.on_notify and self._wrap(name, logic.on_notify)
                rung = logic.on_alarm and self._wrap(name, logic.on_alarm)
                return replace(
                    logic, on_values=wrapped, on_timer=timed, on_notify=notified, on_alarm=rung
                )
            case ColumnarWindows(fold=fold):
                # Only the step meets the fault, so it does the work of the grouped one.
                wrapped_fold = replace(fold, step=self._wrap_columns(name, fold.step), grouped=None)
                return replace(logic, fold=wrapped_fold)
            case fold:
                return replace(fold, step=self._wrap_columns(name, fold.step))

    def _wrap(self, name: str, function: Callable[P, T]) -> Callable[P, T]:
        @wraps(function)
        def wrapped(*args: P.args, **kwargs: P.kwargs) -> T:
            self._raise_if_armed(name)
            return function(*args, **kwargs)

        return wrapped

    def _wrap_coroutine(self, name: str, function: CoroutineFunction) -> CoroutineFunction:
        @wraps(function)
        async def wrapped(value: object) -> object:
            self._raise_if_armed(name)
            return await function(value)

        return wrapped

    def _wrap_columns(self, name: str, step: ColumnStep) -> ColumnStep:
        @wraps(step)
        def wrapped(states: Columns, values: Column, *used: Column) -> tuple[Columns, Column]:
            # A failing call is repeated row by row, and only a call for one row counts.
            self._raise_if_armed(name, counts=len(values) == 1)
            return step(states, values, *used)

        return wrapped

    def _raise_if_armed(self, name: str, counts: bool = True) -> None:
        if self.armed[name] > 0:
            self.armed[name] -= counts
            raise Planted(f"a fault makes a call of {name!r} raise")
