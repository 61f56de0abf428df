"""Frame validation: a frame of a peer is decoded and checked against this flow before it has any
effect.

Guarantees that a valid frame names a location, a time and a payload that this flow has. Any other
frame ends the flow with an error that names the member. Cost: one look-up per message, one
comparison per change.
"""

from __future__ import annotations

from collections.abc import Iterable

from meander.dataflow.api.plan import Plan
from meander.dataflow.control.bin_handoff import BinHandoff
from meander.dataflow.control.colocation import ColocationGroups
from meander.dataflow.control.instructions import (
    CancelMove,
    Prefetch,
    Revoke,
    Rewrite,
    StartPreCopy,
)
from meander.dataflow.control.logic_change import LogicChange, PrepareLogic
from meander.dataflow.control.partition_handoff import PartitionHandoff, ReassignPartition
from meander.dataflow.control.reassignment import Moves
from meander.dataflow.control.timestamp_overrides import TimestampOverride
from meander.dataflow.graph.graph import Graph, Location
from meander.dataflow.interfaces import Frame
from meander.dataflow.records.loop_times import outer_time
from meander.dataflow.wire import (
    AnyFrame,
    Base,
    Change,
    CheckpointFrame,
    DataFrame,
    MarkerFrame,
    MemberFrame,
    OpeningFrame,
    Payload,
    ProgressFrame,
    decode,
)
from meander.schemas.errors import MeanderError
from meander.state.keys.ids import COORDINATOR, WorkerId, member_name
from meander.state.layers.manifest import Manifest

_INT64 = 1 << 63
"""Workers, bins and partitions are numbers from 0 that columns can hold."""

_REMEDY = "run every worker with the same flow"


def read(plan: Plan, sender: WorkerId, frame: Frame) -> AnyFrame:
    """Decode and validate a frame. Raise `MeanderError` in the sender's name."""
    try:
        message = decode(frame)
    except MeanderError as error:
        raise MeanderError(member_name(sender), f"it sent an unreadable frame: {error}") from error
    if wrong := _misfit(plan, sender, message):
        raise MeanderError(member_name(sender), wrong, _REMEDY)
    return message


def read_manifest(plan: Plan, sender: WorkerId, data: bytes) -> Manifest:
    """Decode and validate a manifest that the owner of a bin reports. Raise `MeanderError` in the
    sender's name."""
    try:
        manifest = Manifest.from_bytes(data)
    except Exception as error:  # Avro raises what it likes
        raise MeanderError(
            member_name(sender), f"it reported an unreadable manifest: {error}"
        ) from error
    if wrong := _disorder(plan, manifest.epoch, manifest):
        raise MeanderError(member_name(sender), wrong, _REMEDY)
    return manifest


def _misfit(plan: Plan, sender: WorkerId, message: AnyFrame) -> str:
    """Return how a message does not fit this flow, or ''."""
    graph = plan.graph
    match message:
        case ProgressFrame(changes, _, overrides):
            return _invalid_override(plan, overrides) or _miscount(graph, changes)
        case OpeningFrame(base, _, changes):
            return _misplaced(graph, base) or _miscount(graph, changes)
        case Base():
            return _unfit(sender) or _misplaced(graph, message)
        case MemberFrame(news, rest=rest):
            return ("" if news == "leaves" else _unfit(sender)) or _miscount(graph, rest)
        case MarkerFrame():
            return ""
        case CheckpointFrame():
            return _unfit(sender)
        case DataFrame():
            return _misdirected(plan, sender, message)
    return ""


def _misdirected(plan: Plan, sender: WorkerId, message: DataFrame) -> str:
    edge, time, payload = message.edge, message.time, message.payload
    carried = plan.remote_payloads.get(edge)
    if carried is None:
        return f"it sent a message on edge {edge}, which leads to no other member"
    target = plan.graph.edges[edge].target
    if type(payload) not in carried or not plan.accepts(target, payload):
        return f"it sent a payload that edge {edge} does not carry"
    if not plan.graph.has(target, time):
        return f"it sent a message of time {time}, which edge {edge} does not have"
    if target in plan.coordinator_inputs and (unfit := _unfit(sender)):
        return unfit
    return _disorder(plan, outer_time(time), payload)


def _invalid_override(plan: Plan, overrides: Iterable[TimestampOverride]) -> str:
    for origin, *numbers, last in overrides:
        if origin >= len(plan.sources):
            return "it overrides times of a source that this flow does not have"
        if max(*numbers, last or 0) >= _INT64:
            return "it overrides an offset or time that no partition has"
    return ""


def _disorder(plan: Plan, time: int, payload: Payload | Manifest) -> str:
    """Return what is wrong with a transfer of bins or of a partition at a time, or ''."""
    if unknown := _unknown_bin(plan.groups, payload):
        return unknown
    match payload:
        case (
            Manifest(operator=name)
            | BinHandoff(manifest=Manifest(operator=name))
            | Prefetch(manifest=Manifest(operator=name))
            | Rewrite(operator=name)
        ) if not any(name == one.name for one in plan.stateful):
            return f"it names the state of operator {name!r}, which this flow does not have"
        case LogicChange(operator=name) | PrepareLogic(operator=name) if name not in plan.logics:
            return f"it names the logic of operator {name!r}, which this flow cannot change"
        case ReassignPartition(source) if not 0 <= source < len(plan.sources):
            return f"it sent an order for source {source}, which this flow does not have"
        case ReassignPartition(partition=partition) | PartitionHandoff(partition) if (
            not 0 <= partition < _INT64
        ):
            return f"it sent partition {partition} to another worker, which no source has"
        case Moves(time=at) | Revoke(time=at) | ReassignPartition(time=at) if at != time:
            return f"it sent an order for time {at} in a message of time {time}"
        case ReassignPartition(offset=int(offset)) if not 0 <= offset < _INT64:
            return f"it sent an order to read from offset {offset}, which no partition has"
        case Moves(target=target) | ReassignPartition(target=target) if not 0 <= target < _INT64:
            return f"it sent an order for target {target}, which is not a worker"
        case PartitionHandoff(frontier=frontier) if frontier < time:
            return f"it sent a partition at time {frontier}, before its message's time {time}"
    return ""


def _unknown_bin(groups: ColocationGroups, payload: Payload | Manifest) -> str:
    match payload:
        case Moves(bins=bins):
            known = groups.total
        case StartPreCopy(bin=bin) | CancelMove(bin):
            bins, known = (bin,), groups.total
        case (
            Manifest(bin=bin)
            | BinHandoff(manifest=Manifest(bin=bin))
            | Prefetch(manifest=Manifest(bin=bin))
            | Rewrite(bin=bin)
        ):
            bins, known = (bin,), groups.count
        case _:
            return ""
    wrong = [bin for bin in bins if not 0 <= bin < known]
    return f"it names bin {wrong[0]}, and this flow has {known} bins" if wrong else ""


def _miscount(graph: Graph, changes: Iterable[Change]) -> str:
    if all(graph.has(location, time) for location, time, _ in changes):
        return ""
    return "it counts messages at a location or time that this flow does not have"


def _misplaced(graph: Graph, base: Base) -> str:
    bounds = base.bounds
    fits = len(bounds) == graph.locations and all(
        graph.has(Location(at), time) for at, bound in enumerate(bounds) for time in bound
    )
    return "" if fits else "its base has a location or time that this flow does not have"


def _unfit(sender: WorkerId) -> str:
    return "" if sender == COORDINATOR else "it sent a frame that only the coordinator may send"
