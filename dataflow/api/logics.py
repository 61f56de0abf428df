"""The changeable logics of a flow: where they stand, and what a version must have to replace one.

Guarantees that an operator gets only versions with the functions that it needs. A version may not
drop a function that pending calls need. Cost: once per definition, and once per change and worker.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from inspect import unwrap

from meander.dataflow.api.determinism import is_nondeterministic
from meander.dataflow.api.nodes import (
    FoldLogic,
    KeyedNode,
    Node,
    ProcessLogic,
    StepsNode,
)
from meander.dataflow.api.validation import check, expect_functions
from meander.dataflow.logic.changeable import ChangeableLogic
from meander.dataflow.operators.stateless import Step
from meander.schemas.errors import SetupError
from meander.state.encoding.codec import PLAIN

OPTIONAL = "on_timer", "on_notify", "on_alarm"
"""The functions of a process function that a logic may leave out."""


def fold_of(name: str, logic: ChangeableLogic) -> FoldLogic:
    """Return the fold of a logic. Raises SetupError, about the operator, where a function is
    missing."""
    expect_functions(name, logic, ("init", "step"))
    return FoldLogic(getattr(logic, "init"), getattr(logic, "step"), logic)  # noqa: B009


def process_of(
    name: str, logic: ChangeableLogic, side: tuple[str, ...], uses: tuple[str, ...] = ()
) -> ProcessLogic:
    """Return the process function of a logic. Raises SetupError, about the operator, where a
    function is missing."""
    expect_functions(name, logic, ("init", "step"))
    init, step, on_timer, on_notify, on_alarm = (
        getattr(logic, function, None) for function in ("init", "step", *OPTIONAL)
    )
    assert init is not None
    assert step is not None
    return ProcessLogic(init, (step,), on_timer, on_notify, on_alarm, side, logic, uses)


def changeable_logics(nodes: Iterable[Node]) -> Mapping[str, ChangeableLogic]:
    """Return the changeable logics of a flow, by operator. A step of a chain is an operator."""
    return dict(_changeable_logics(nodes))


def _changeable_logics(nodes: Iterable[Node]) -> Iterator[tuple[str, ChangeableLogic]]:
    for node in nodes:
        match node:
            case StepsNode(steps=steps):
                for step in steps:
                    # A test may have wrapped it.
                    if isinstance(logic := unwrap(step.function), ChangeableLogic):
                        yield step.name, logic
            case KeyedNode(logic=FoldLogic(changeable=ChangeableLogic() as logic)):
                yield node.name, logic
            case KeyedNode(logic=ProcessLogic(changeable=ChangeableLogic() as logic)):
                yield node.name, logic


def with_logic(node: KeyedNode, logic: ChangeableLogic) -> KeyedNode:
    """Return a stateful operator with another version of its logic. Raises SetupError where a
    function is missing."""
    match node.logic:
        case FoldLogic():
            return replace(node, logic=fold_of(node.name, logic))
        case ProcessLogic(side=side, uses=uses):
            return replace(node, logic=process_of(node.name, logic, side, uses))
    raise AssertionError(f"operator {node.name!r} has a changeable logic")


def expect_replaces(
    node: KeyedNode | Step, before: ChangeableLogic, logic: ChangeableLogic
) -> None:
    """Raise SetupError where a version cannot replace the one before it at an operator."""
    subject = f"operator {node.name!r}"
    if not isinstance(node, KeyedNode):
        expect_functions(node.name, logic, ("__call__",))
    else:
        check(with_logic(node, logic))
        dropped = [one for one in OPTIONAL if hasattr(before, one) and not hasattr(logic, one)]
        if isinstance(node.logic, ProcessLogic) and dropped:
            raise SetupError(
                subject, f"{type(logic).__name__} has no {dropped[0]}, and calls may be pending",
                f"keep {dropped[0]}",
            )  # fmt: skip
        added = hasattr(logic, "on_alarm") and not hasattr(before, "on_alarm")
        if isinstance(node.logic, ProcessLogic) and added:
            raise SetupError(
                subject, f"{type(logic).__name__} has on_alarm, which the wall clock calls, and"
                " results of the version before it do not wait for checkpoints",
                "change it by a restart",
            )  # fmt: skip
        if logic.upgrades and node.order == "processing":
            raise SetupError(
                subject, "it applies records in the order of arrival, so a record of an earlier"
                " time may follow the upgrade of its state", "leave out `upgrade`",
            )  # fmt: skip
        if logic.upgrades and node.codec.name != PLAIN.name:
            raise SetupError(
                subject, f"its states have the codec {node.codec.name!r}, and only plain states"
                " can be upgraded", "leave out `upgrade`",
            )  # fmt: skip
    if _is_nondeterministic(node, logic) and not _is_nondeterministic(node, before):
        raise SetupError(
            subject, f"{type(logic).__name__} is declared nondeterministic, and results of the"
            " version before it do not wait for checkpoints",
            "change it by a restart",
        )  # fmt: skip


def _is_nondeterministic(node: KeyedNode | Step, logic: ChangeableLogic) -> bool:
    if not isinstance(node, KeyedNode):
        return is_nondeterministic(logic)
    functions = (getattr(logic, one, None) for one in ("init", "step", *OPTIONAL))
    return any(map(is_nondeterministic, functions))
