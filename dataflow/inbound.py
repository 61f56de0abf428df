"""What a peer's frame may say: it is read and held against this flow before anything is done.

Guarantees that what passes names a place, a time and a payload as this flow has them; all else
ends the flow with a sentence that names the member. Cost: a look-up per message, one comparison
per change.
"""

from __future__ import annotations

from dataflow.batch import Batch
from dataflow.plan import Plan
from dataflow.protocols import Frame
from dataflow.wire import DataFrame, ProgressFrame, TakenFrame, decode
from schemas.errors import MeanderError
from state.ids import WorkerId, member_name


def read(plan: Plan, sender: WorkerId, frame: Frame) -> ProgressFrame | DataFrame | TakenFrame:
    """A frame's meaning for this flow. Raises MeanderError, in the sender's name."""
    try:
        message = decode(frame)
    except MeanderError as error:
        raise MeanderError(member_name(sender), f"it sent garbage: {error}") from error
    if wrong := _misfit(plan, message):
        remedy = "run every worker with the same flow"
        raise MeanderError(member_name(sender), wrong, remedy)
    return message


def _misfit(plan: Plan, message: ProgressFrame | DataFrame | TakenFrame) -> str:
    """What this flow does not have of all that a message names, or ''."""
    graph = plan.graph
    match message:
        case ProgressFrame(changes):
            if not all(graph.has(location, time) for location, time, _ in changes):
                return "it counts messages at a place or time that this flow does not have"
        case DataFrame(edge, time, payload):
            carried = plan.crossing.get(edge)
            if carried is None:
                return f"it sent a message on edge {edge}, which leads to no other member"
            keyless = isinstance(payload, Batch) and payload.keys is None
            if type(payload) is not carried or keyless:
                return f"it sent what edge {edge} does not carry"
            if not graph.has(graph.edges[edge].target, time):
                return f"it sent a message of time {time}, which edge {edge} does not have"
    return ""
