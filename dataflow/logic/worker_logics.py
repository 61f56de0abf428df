"""The changeable logics of one worker: versions that it has loaded, and timelines that get them.

Guarantees that a decided version was loaded and checked before its decision, except where a worker
joins or restarts. Cost: an import at the first use of a module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from meander.dataflow.control.logic_change import LogicChange, LogicVersion, PrepareLogic
from meander.dataflow.control.reports import LogicPrepared, SendReport
from meander.dataflow.logic.changeable import (
    ChangeableLogic,
    load,
    version_of,
)
from meander.dataflow.operators.error_policy import describe, failure
from meander.state.times.time import MIN_TIME

Check = Callable[[ChangeableLogic, ChangeableLogic], None]
"""Raises SetupError where the second version cannot replace the first one."""
MAX_ERROR = 4_000
"""The most characters of an error that a worker reports. Events repeat it."""
Install = Callable[[LogicChange, ChangeableLogic, ChangeableLogic], None]
"""Adds the second version of a change to the timeline of an operator."""


class WorkerLogics:
    """The changeable logics of one worker."""

    def __init__(self, home_of: Callable[[str], str], report: SendReport) -> None:
        """`home_of` returns the module in which versions of an operator's logic have bare names."""
        self._home_of, self._report = home_of, report
        self._loaded: dict[tuple[str, LogicVersion], ChangeableLogic] = {}
        self._operators: dict[str, tuple[Check, Install]] = {}

    def add(self, operator: str, check: Check, install: Install) -> None:
        """Add an operator with a changeable logic."""
        self._operators[operator] = check, install

    def start(self, changes: Iterable[LogicChange]) -> None:
        """Let the changes of earlier executions take effect. Before the first one an operator has
        the version that it had then, whatever its flow defines now."""
        known = set[str]()
        for change in changes:
            if change.operator not in known:
                known.add(change.operator)
                first = change.before
                self.apply(replace(change, time=MIN_TIME, version=first, generation=0))
            self.apply(change)

    def receive(self, message: PrepareLogic | LogicChange) -> None:
        """Prepare a version, or let one take effect at its time."""
        if isinstance(message, PrepareLogic):
            self._prepare(message)
        else:
            self.apply(message)

    def _prepare(self, instruction: PrepareLogic) -> None:
        """Load and check a version, and report whether it can take effect."""
        operator, version = instruction.operator, instruction.version
        upgrades, error = False, ""
        try:
            check, _ = self._operators[operator]
            logic = self._load(operator, version)
            before = self._load(operator, instruction.before)
            check(before, logic)
            version, upgrades = (
                version_of(logic, self._home_of(operator)),
                logic.upgrades_from(before),
            )
        except failure() as problem:
            error = (str(problem) or describe(problem))[:MAX_ERROR]
        self._report(
            LogicPrepared(instruction.number, version.name, version.parameters, upgrades, error)
        )

    def apply(self, change: LogicChange) -> None:
        """Let a version take effect at its time. Raises SetupError where it cannot be loaded."""
        before = self._load(change.operator, change.before)
        version = self._load(change.operator, change.version)
        _, install = self._operators[change.operator]
        install(change, before, version)
        kept = change.operator, change.version
        self._loaded = {at: one for at, one in self._loaded.items() if at[0] != kept[0]}
        self._loaded[kept] = version

    def _load(self, operator: str, version: LogicVersion) -> ChangeableLogic:
        at = operator, version
        if at not in self._loaded:
            self._loaded[at] = load(version, self._home_of(operator), f"operator {operator!r}")
        return self._loaded[at]
