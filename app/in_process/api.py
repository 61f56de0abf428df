"""What `Flow.run` and `Stream.take` do, with the settings that commands use too."""

from __future__ import annotations

from collections.abc import Sequence

from meander.app.config import cluster
from meander.app.in_process import runner
from meander.app.in_process.collector import Collector
from meander.dataflow.api.builder import Definition
from meander.dataflow.api.flow import Flow
from meander.dataflow.api.in_process import InProcessResult
from meander.dataflow.api.nodes import Output, SinkNode
from meander.dataflow.api.upstream import ancestors
from meander.schemas.errors import SetupError


def run(
    flow: Flow, *, until_end: bool, fire_timers: bool, start: str, bootstrap: str | None
) -> InProcessResult:
    """Run a flow in this process; see `Flow.run`."""
    return runner.run(
        flow, flow.nodes, lambda: cluster.kafka(None, None, bootstrap), until_end=until_end,
        fire_timers=fire_timers, start=start,
    )  # fmt: skip


def take(
    flow: Definition, at: Output, count: int, *, start: str, bootstrap: str | None
) -> list[object]:
    """Return the first values at an output; see `Stream.take`."""
    if at.scope.parent is not None:
        raise SetupError(f"operator {at.node.name!r}", "it lies inside a loop",
                         "take from a stream that has left the loop")  # fmt: skip
    assert isinstance(flow, Flow), "streams belong to flows"
    found = list[object]()

    def collect(_: Sequence[object], values: Sequence[object]) -> None:
        found.extend(values)

    name = flow.name_for("take")
    nodes = [*ancestors(flow.nodes, at.node), SinkNode(name, at, Collector(collect), "fail")]
    result = runner.run(
        flow, nodes, lambda: cluster.kafka(None, None, bootstrap), until_end=True,
        fire_timers=True, start=start, enough=lambda: len(found) >= count,
    )  # fmt: skip
    if not found and result.dead_letters:
        letter = result.dead_letters[0]
        raise SetupError(
            f"operator {letter.operator!r}", f"it has given dead letters alone ({letter.reason})",
            "correct its function, or the format of its source",
        )  # fmt: skip
    return found[:count]
