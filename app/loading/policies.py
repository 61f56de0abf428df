"""The policies of a run: those of the flow's module, and those that the command line names.

A name is that of a policy that comes with Meander, or of an entry point in the group
`meander.policies`. Guarantees that a wrong name or option fails before the launch. Cost: one search
for entry points per run that names a policy.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterable, Mapping
from importlib.metadata import entry_points
from typing import Final, get_type_hints

from meander.dataflow.api.flow import Flow
from meander.dataflow.operators.error_policy import describe, failure
from meander.dataflow.policies.drift import DriftTrigger
from meander.dataflow.policies.ds2 import DS2Autoscaler
from meander.dataflow.policies.paced import PacedMigration
from meander.dataflow.policies.policy import Policy
from meander.dataflow.policies.skew import SkewBalancer
from meander.dataflow.policies.threshold import ThresholdAutoscaler
from meander.schemas.errors import SetupError

GROUP = "meander.policies"
"""The group of entry points by which packages add policies."""

SHIPPED: Final[Mapping[str, type[Policy]]] = {
    "drift": DriftTrigger,
    "ds2": DS2Autoscaler,
    "paced": PacedMigration,
    "skew": SkewBalancer,
    "threshold": ThresholdAutoscaler,
}
"""The policies that come with Meander."""


def policies_of(flow: Flow, named: Iterable[str]) -> list[Policy]:
    """Return the policies of a flow, and then those named as `NAME[:key=value,...]`. Raises
    SetupError for a name or an option that is wrong.

    >>> policies_of(Flow("counts"), ["skew:max_moves=4", "paced:inner=ds2,latency=0.5"])
    [SkewBalancer(...max_moves=4...), PacedMigration(inner=DS2Autoscaler(...), latency=0.5...)]
    """
    return [*flow.policies, *map(parse_policy, named)]


def parse_policy(text: str) -> Policy:
    """Return the policy of a text `NAME[:key=value,...]`. Values are numbers, true, false or texts;
    one for another policy is its name. Raises SetupError for a wrong text."""
    name, _, listed = text.partition(":")
    kind = _kind(name.strip())
    hints = get_type_hints(kind)
    options: dict[str, object] = {}
    for option in filter(None, listed.split(",")):
        key, equals, value = (part.strip() for part in option.partition("="))
        if not (key and equals):
            raise SetupError(f"policy {name!r}", f"{option!r} is no option", _remedy(kind))
        options[key] = parse_policy(value) if hints.get(key) is Policy else _value(value)
    try:
        found: object = kind(**options)
    except SetupError:
        raise
    except failure() as error:
        raise SetupError(
            f"policy {name!r}", f"it cannot be made: {describe(error)}", _remedy(kind)
        ) from error
    if not isinstance(found, Policy):
        raise SetupError(
            f"policy {name!r}", f"its entry point gives a {type(found).__name__}",
            "let the entry point name a subclass of meander.Policy",
        )  # fmt: skip
    return found


def _kind(name: str) -> type[Policy]:
    if name in SHIPPED:
        return SHIPPED[name]
    found = {point.name: point for point in entry_points(group=GROUP)}
    if name not in found:
        known = ", ".join(sorted({*SHIPPED, *found}))
        raise SetupError(f"policy {name!r}", "it is unknown", f"name one of {known}")
    try:
        kind: type[Policy] = found[name].load()
    except failure() as error:
        raise SetupError(
            f"policy {name!r}", f"its entry point cannot be loaded: {describe(error)}",
            "correct the package that has it",
        ) from error  # fmt: skip
    return kind


def _value(text: str) -> object:
    try:
        value: object = json.loads(text)
    except ValueError:
        return text
    return value


def _remedy(kind: type[Policy]) -> str:
    names = [name for name in inspect.signature(kind).parameters if not name.startswith("_")]
    return f"write key=value for {', '.join(names)}" if names else "leave its options out"
