"""Changeable logic: the functions of an operator in a class, so that a plan can replace them.

The fields of the class are its parameters. A version is the class with values for them. Guarantees
that a version loads only from a class that a user has written for this purpose, with parameters of
the types of its fields.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from meander.dataflow.control.logic_change import LogicVersion
from meander.dataflow.operators.error_policy import describe, failure
from meander.schemas.errors import SetupError


class ChangeableLogic(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The base of a logic that can change while the flow runs. Its fields are parameters.

    A class for `map`, `filter`, `flat_map`, `inspect` or `key_by` has `__call__(self, value)`. One
    for `fold` has `init(self)` and `step(self, state, value)`, which returns the state and a
    result. One for `process` has `init(self)` and `step(self, context, state, value)`, and may have
    `on_timer(self, context, state)` and `on_notify(self, context, state)`.

    >>> from meander import Flow
    >>> from meander.dataflow.simulation.in_memory import ListSink, ListSource
    >>> from meander.testing import TestFlow
    >>> class Above(ChangeableLogic, frozen=True):
    ...     limit: float = 2.0
    ...     def __call__(self, value):
    ...         return value > self.limit
    >>> flow, sink = Flow("alerts"), ListSink()
    >>> flow.source(ListSource([[(1, 1.5), (2, 2.5), (3, 3.5)]])).filter(Above(limit=3)).sink(sink)
    >>> with TestFlow(flow) as run:
    ...     run.run()
    >>> sink.values
    [3.5]
    """

    def upgrade(self, state: Any, before: ChangeableLogic) -> object:  # noqa: ANN401 (the user's)
        """Return the state of a key in the form of this version. `before` is the version that wrote
        it. A worker calls this once per key, when the key is next needed. A version that reads the
        states of the one before it as they are leaves it out."""
        raise NotImplementedError

    @property
    def upgrades(self) -> bool:
        """Return whether the class upgrades the states of an earlier version."""
        return type(self).upgrade is not ChangeableLogic.upgrade

    def upgrades_from(self, before: ChangeableLogic) -> bool:
        """Return whether states of the version before it need an upgrade: it is of another class,
        and says how."""
        return self.upgrades and type(self) is not type(before)


def version_of(logic: ChangeableLogic, home: str) -> LogicVersion:
    """Return the version of a logic, as seen from the module `home` that defines the flow. Raises
    SetupError where JSON cannot express a parameter."""
    kind = type(logic)
    name = kind.__qualname__
    module = kind.__module__
    try:
        parameters = msgspec.to_builtins(logic, str_keys=True)
        return LogicVersion.of(name if module == home else f"{module}:{name}", parameters)
    except (ValueError, TypeError) as error:
        raise SetupError(
            f"logic {name!r}", f"JSON cannot express its parameters: {error}",
            "give it numbers, texts, lists and objects",
        ) from error  # fmt: skip


def load(version: LogicVersion, home: str, subject: str) -> ChangeableLogic:
    """Return the logic of a version, for a flow that the module `home` defines. Raises SetupError,
    about `subject`, where there is no such class, or its fields do not take the parameters."""
    module, colon, name = version.name.rpartition(":")
    try:
        found: object = _module(module if colon else home, home)
        for part in name.split("."):
            found = getattr(found, part)
    except failure() as error:
        raise SetupError(
            subject, f"its logic {version.name!r} cannot be imported: {describe(error)}",
            "name a class of the flow's module, or module:Class of a module beside it",
        ) from error  # fmt: skip
    if not (isinstance(found, type) and issubclass(found, ChangeableLogic)):
        raise SetupError(
            subject, f"its logic {version.name!r} is not a subclass of ChangeableLogic",
            "derive it from meander.ChangeableLogic",
        )  # fmt: skip
    try:
        return msgspec.convert(version.values, found, str_keys=True)
    except (ValueError, TypeError) as error:
        fields = ", ".join(found.__struct_fields__) or "no parameters"
        raise SetupError(
            subject, f"{version.name!r} does not take the parameters {version.parameters}: {error}",
            f"give it values for {fields}",
        ) from error  # fmt: skip


def _module(name: str, home: str) -> ModuleType:
    """Return a module. The module of a flow is loaded already, under a name that no import finds.
    Raises ImportError for one that neither lies beside it nor is loaded."""
    if name in sys.modules:
        return sys.modules[name]
    spec = find_spec(name.partition(".")[0])
    beside = _root(home)
    if beside is not None and spec is not None and beside not in Path(spec.origin or "").parents:
        raise ImportError(f"{name!r} does not lie beside the flow's module, which may import it")
    return import_module(name)


def _root(home: str) -> Path | None:
    """Return the folder of a module, above its packages; None for a module without a file."""
    file = getattr(sys.modules.get(home), "__file__", None)
    return None if file is None else Path(file).parents[home.count(".")]
