"""`meander plan`: print plans, their differences, and how a plan comes into force."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import yaml

from meander.app.cli.follow import show_end
from meander.app.cli.views.rescale import sentence as worker_sentence
from meander.app.cli.views.rescale import waits
from meander.app.cli.views.summary import MoveSummary
from meander.app.common.output import CommandOutput, at_millis
from meander.dataflow.metrics.counters import counted
from meander.schemas.plan_record import PlanRecord
from meander.schemas.status import (
    Aborted,
    Accepted,
    BinMoved,
    CommandRejected,
    Event,
    Joined,
    JoinFailed,
    Left,
    PlanCompared,
    PlanInForce,
    Reconfigured,
    Reconfiguring,
    RolledBack,
)


def show_plan(output: CommandOutput, events: Iterator[Event], *, as_yaml: bool) -> int:
    """Print the plan in force, as YAML also where no terminal is. Return the exit code."""
    for event in events:
        match event:
            case PlanCompared(plan=plan, places=places):
                if as_yaml:
                    print_plan(output, plan, places)
                else:
                    output.line(plan)
            case CommandRejected(reason=reason):
                output.event(event)
                output.say(f"rejected: {reason}")
                return 1
    return 0


def print_plan(output: CommandOutput, plan: dict[str, object], places: dict[str, str]) -> None:
    """Print a plan as YAML, with the places of workers as comments."""
    for worker, place in places.items():
        output.console.print(f"# worker {worker} runs in {place}", markup=False)
    text = yaml.safe_dump(plan, sort_keys=False, allow_unicode=True)
    output.console.print(text, markup=False, soft_wrap=True, end="")


def show_difference(output: CommandOutput, events: Iterator[Event]) -> int:
    """Print the operations of a plan, one a line. Return the exit code."""
    return show_end(output, events, _operations)


def _operations(event: Event) -> str:
    if isinstance(event, PlanCompared):
        return "\n".join(event.operations or ["nothing changes"])
    return ""


def show_apply(output: CommandOutput, events: Iterator[Event], command: str) -> int:
    """Print how a plan comes into force, with a progress bar of workers and bins. Return the exit
    code: 1 if the command was rejected, aborted or rolled back."""
    summary = MoveSummary(output, waits)
    code = 0
    with output.bar("steps") as progress:
        task, total = progress.add_task("command sent", total=None), 0
        for event in events:
            summary.take(event)
            # The parts of the command have ids of their own.
            own = not isinstance(event, Aborted) or event.id == command
            if own and (said := sentence(event)):
                output.say(said)
            match event:
                case Reconfiguring():
                    progress.update(task, description="workers start")
                case Accepted(bins=bins):
                    total += len(bins)
                    progress.update(task, total=total, description="bins are copied")
                case BinMoved():
                    progress.update(task, advance=1, description="bins move")
                case CommandRejected() | RolledBack():
                    code = 1
                case Aborted(id=id) if id == command:
                    code = 1
    return code


def sentence(event: Event) -> str:
    """Return a sentence about a plan that comes into force; '' for other events.

    >>> sentence(RolledBack(id="p", offset=3, reason="worker 2: no free slot"))
    'rolled back, the old plan stays in force: worker 2: no free slot'
    """
    match event:
        case Reconfiguring(operations=operations):
            return "accepted:\n" + "\n".join(f"  {one}" for one in operations or ["nothing"])
        case Joined() | Left():
            return worker_sentence(event)
        case JoinFailed(reason=reason):
            return reason
        case PlanInForce(time=time, prepare_ms=prepare, synchronise_ms=synchronise):
            took = f" (prepared in {prepare or 0:,.0f} ms, applied in {synchronise or 0:,.0f} ms)"
            return f"in force from {time} ms on" + ("" if prepare is None else took)
        case Reconfigured(workers=workers, ms=ms):
            took = "" if ms is None else f", {ms:,.0f} ms"
            return f"completed: {counted(workers, 'worker')}{took}"
        case Aborted(reason=reason):
            return f"aborted, the old plan stays in force: {reason}"
        case RolledBack(reason=reason):
            return f"rolled back, the old plan stays in force: {reason}"
        case CommandRejected(reason=reason):
            return f"rejected: {reason}"
    return ""


def plan_table(output: CommandOutput, plans: Sequence[PlanRecord]) -> None:
    """Print all plans, the newest last."""
    rows = [
        [
            one.id, at_millis(one.millis), one.by, one.why, one.outcome, one.ms, one.reason,
            "; ".join(one.operations),
        ]
        for one in plans
    ]  # fmt: skip
    columns = ["id", "started (UTC)", "by", "why", "outcome", "ms", "reason", "operations"]
    output.table("plans", columns, rows)
    if not plans:
        output.say("No plan was applied.")
