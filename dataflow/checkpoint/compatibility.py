"""The compatibility check: whether a flow can start from a checkpoint, and from which parts of it.

Guarantees that one error names all mismatches, and that nothing is dropped without permission. An
operator that the checkpoint does not know starts empty. In-flight records continue only where the
operators behind their input are the same (`api/lineage.py`). Cost: O(manifests, pieces), once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from meander.dataflow.api.nodes import KeyedNode, StatefulNode
from meander.dataflow.api.plan import Plan
from meander.dataflow.control.decisions import StartDecision
from meander.dataflow.exactly_once.commit_history import History
from meander.schemas.errors import SetupError
from meander.schemas.log_lines import LineLogger
from meander.state.checkpoint.arrangements import KeptArrangement
from meander.state.checkpoint.checkpoint import INITIAL_CUT, Checkpoint, InputLineage
from meander.state.encoding.codec import PLAIN, definition_of

log = LineLogger(__name__)


def expect_fits(
    checkpoint: Checkpoint, plan: Plan, allow_dropped: bool = False, outside: Sequence[str] = (),
    twice: Sequence[str] = (), earlier: int | None = None, skip: str = "",
    lost: Sequence[str] = (),
) -> None:  # fmt: skip
    """Raise `SetupError` with all reasons why a flow cannot start from a checkpoint.

    `outside` are mismatches of its definition with its last execution. `lost` are topics that lack
    records, and `skip` how to ignore that, if possible. `twice` are results that would be written
    twice; `earlier` is the number of another checkpoint. With `allow_dropped` a log line names each
    dropped part.
    """
    states, in_flight = _strange(checkpoint, plan), _unplaced(checkpoint, plan)
    strange = [*states, *in_flight]
    bins, groups = _bins(checkpoint, plan), []
    codecs, windows = _codecs(checkpoint, plan)
    arrangements = _other_arrangements(checkpoint, plan)
    if not bins:
        groups = _other_groups(checkpoint, plan)
    redefined = [
        *bins, *codecs, *windows, *arrangements, *groups, *([] if allow_dropped else strange),
        *outside, *twice,
    ]  # fmt: skip
    wrong = [*redefined, *lost]
    if wrong:
        help = [f"give the flow bins={checkpoint.space.bits}"] if bins else []
        help += ["give it that codec, and a ttl where the name ends with '+ttl'"] if codecs else []
        if windows:
            help.append(
                "give its windows another name: drop the old ones with --allow-dropped-state, or"
                " keep the old operator beside them until they have closed"
            )
        if in_flight and not allow_dropped:
            help.append(_without_in_flight(plan.flow.name))
        if strange and not allow_dropped and checkpoint.cut != INITIAL_CUT:
            help.append("drop what the flow has no place for with --allow-dropped-state")
        help += [skip] if skip else []
        help += ["accept results twice with --allow-nondeterminism"] if twice else []
        if earlier is not None and strange and not (bins or outside or twice or lost):
            help.append(f"start from an earlier checkpoint, such as --from {earlier}")
        # No definition of the flow brings lost records back.
        before = "define the flow as before, or " if redefined else ""
        again = (
            "write it again with meander bootstrap --replace"
            if checkpoint.cut == INITIAL_CUT
            else f"{before}start it from scratch with meander reset {plan.flow.name}"
        )
        where = f"flow {plan.flow.name!r}, checkpoint {checkpoint.number}"
        raise SetupError(where, "; ".join(wrong), ", or ".join([*help, again]))
    for one in strange:
        log.warning("state_dropped", checkpoint=checkpoint.number, state=one)


def renumbered(last: StartDecision, plan: Plan) -> list[str]:
    """Return the groups and sources whose numbers differ from those of the last execution.

    Bins and timestamp overrides refer to groups and sources by these numbers alone.
    """
    return [
        f"{what} were {_named(had)}, and are now {_named(has)}, in another order or with"
        " others in their midst"
        for what, had, has in (
            ("groups of operators that move together", last.groups, tuple(plan.groups.names)),
            ("sources", last.sources, tuple(one.name for one in plan.sources)),
        )
        if has[: len(had)] != had and (what != "sources" or plan.flow.delivery == "exactly_once")
    ]


def duplicated_results(checkpoint: Checkpoint, plan: Plan, history: History) -> list[str]:
    """Return the committed results that the flow would write again after a start from a
    checkpoint."""
    if plan.flow.delivery == "at_least_once":
        return []
    sent, timed = history.last_sent, history.timed(checkpoint.execution)
    found = [
        f"sink {sink!r} has committed results since without an outbox, and now it has one"
        for sink in sorted(timed & plan.outboxes)
    ]
    new = sorted(plan.ordered_sinks.keys() - timed)
    found += [
        f"sink {sink!r} has committed results since, and the flow has no such sink: if one of"
        f" {_named(new)} replaces it, it would write them again"
        for sink in sorted(timed.difference(plan.functions_before) if new else ())
    ]
    if sent > checkpoint.number:
        found.append(
            f"outbox contents of checkpoint {sent} are committed, and a replay of the same"
            " records may give other results"
        )
    return found


def _named(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names)) or "none"


def restorable_parts(checkpoint: Checkpoint, plan: Plan) -> Checkpoint:
    """Return the parts of a checkpoint that fit the flow."""
    cut, keyed = checkpoint.cut, {node.name for node in plan.stateful}
    strange = _strange_places(checkpoint, plan)
    sources = {source.name for source in plan.sources}
    return replace(
        checkpoint,
        manifests=tuple(one for one in checkpoint.manifests if one.operator in keyed),
        cut=replace(
            cut,
            deltas=tuple(one for one in cut.deltas if one.operator in keyed),
            bundles=tuple(one for one in cut.bundles if one.operator in keyed),
            positions=tuple(one for one in cut.positions if one.source in sources),
            notifications=tuple(one for one in cut.notifications if one.operator in keyed),
            pieces=tuple(one for one in cut.pieces if one.at not in strange),
        ),
    )


def _strange(checkpoint: Checkpoint, plan: Plan) -> list[str]:
    """Return the mismatches of states, positions and notifications."""
    cut, known = checkpoint.cut, [node.name for node in plan.stateful]
    return [
        *_strange_states(checkpoint, known),
        *(f"it holds positions of source {name!r}, and the flow has no such source"
          for name in sorted({one.source for one in cut.positions}
                             - {source.name for source in plan.sources})),
        *(f"it holds notifications of operator {name!r}, and the flow has no such operator"
          for name in sorted({one.operator for one in cut.notifications}.difference(known))),
    ]  # fmt: skip


def _strange_states(checkpoint: Checkpoint, known: Collection[str]) -> list[str]:
    keys, sizes = Counter[str](), Counter[str]()
    for manifest in checkpoint.manifests:
        if manifest.operator not in known:
            keys[manifest.operator] += sum(layer.count for layer in manifest.layers)
            sizes[manifest.operator] += sum(layer.bytes for layer in manifest.layers)
    there = ", ".join(map(repr, known)) or "none"
    return [
        f"it holds states of {name!r}, and the flow has no such operator (up to {keys[name]:,}"
        f" keys, {size:,} bytes; its stateful operators: {there})"
        for name, size in sorted(sizes.items())
    ]


def _unplaced(checkpoint: Checkpoint, plan: Plan) -> list[str]:
    """Return the mismatches of in-flight records."""
    strange, records = _strange_places(checkpoint, plan), Counter[tuple[str, str]]()
    for piece in checkpoint.cut.pieces:
        if piece.at in strange:
            what = "an outbox of sink" if plan.in_outbox(piece) else "operator"
            records[f"{what} {piece.node!r}", strange[piece.at]] += piece.records
    return [f"{count:,} records are on their way to {at}, {why}"
            for (at, why), count in sorted(records.items())]  # fmt: skip


def _strange_places(checkpoint: Checkpoint, plan: Plan) -> Mapping[tuple[str, int], str]:
    """Return the inputs at which in-flight records cannot continue, and why.

    Where the checkpoint has no lineage of an input, its name has to suffice.
    """
    had, has = {way.at: way for way in checkpoint.cut.lineage}, plan.lineages
    found = dict[tuple[str, int], str]()
    keyless = {piece.at for piece in checkpoint.cut.pieces if not piece.keyed}
    for at in {piece.at for piece in checkpoint.cut.pieces}:
        if at not in has:
            known = at[0] in plan.ports
            found[at] = (
                f"and the flow has none {f'with input {at[1]}' if known else 'of that name'}"
            )
        elif others := _others(had.get(at, has[at]), has[at]):
            found[at] = f"which {' and '.join(others)}"
        elif at in keyless and plan.input_at(*at) in plan.keyed_inputs:
            found[at] = "which has keys there, and they have none"
    return found


def _others(had: InputLineage, has: InputLineage) -> list[str]:
    """Return the changes of an input's lineage; records may gain a reader, and nothing else."""
    found = list[str]()
    if had.behind != has.behind:
        was, now = (", then ".join(way.behind) for way in (had, has))
        found.append(f"stood behind {was}, and stands behind {now}")
    if not {*had.before} <= {*has.before}:
        was, now = (" and ".join(way.before) or "nothing" for way in (had, has))
        found.append(f"led to {was}, and leads to {now}")
    return found


def _without_in_flight(flow: str) -> str:
    """Return how to change a flow with in-flight records."""
    return (
        "run the flow as it was, have nothing in flight in a checkpoint by meander checkpoint"
        f" {flow} --policy aligned --savepoint aligned, stop it, and run the changed one with"
        " --from aligned"
    )


def _bins(checkpoint: Checkpoint, plan: Plan) -> list[str]:
    had, has = checkpoint.space.count, plan.flow.space.count
    return [] if had == has else [f"it has {had} bins, and the flow has {has}"]


def _codecs(checkpoint: Checkpoint, plan: Plan) -> tuple[list[str], list[str]]:
    """Return the operators whose states have another codec than they can hold, and those whose
    states are of other windows."""
    known = {node.name: node for node in plan.stateful}
    written = {
        (manifest.operator, layer.codec)
        for manifest in checkpoint.manifests
        for layer in manifest.layers
        if manifest.operator in known
    }
    codecs, windows = list[str](), list[str]()
    for name, codec in sorted(written):
        own = _codec_name(known[name])
        had, has = definition_of(codec), definition_of(own)
        if codec in _readable_codecs(known[name]):
            continue
        if had or has:
            windows.append(
                f"operator {name!r} had {had or 'no windows'}, and now has {has or 'no windows'}"
            )
        else:
            codecs.append(
                f"the states of {name!r} were written with codec '{codec}', and the operator's is"
                f" '{own}'"
            )
    return codecs, windows


def _codec_name(node: StatefulNode) -> str:
    return node.codec_name if isinstance(node, KeyedNode) else node.codec.name


def _readable_codecs(node: StatefulNode) -> Collection[str]:
    """Return the names of codecs whose states an operator can hold. Plain states may have been
    written before the operator had a time to live."""
    return {_codec_name(node), PLAIN.name} if node.codec is PLAIN else {_codec_name(node)}


def _other_arrangements(checkpoint: Checkpoint, plan: Plan) -> list[str]:
    """Return the operators whose states hold other arrangements than they now keep or read."""
    found, known = list[str](), {node.name for node in plan.stateful}
    for name in sorted({one.operator for one in checkpoint.manifests} & known):
        had, has = (
            [one for one in kept if one.operator == name]
            for kept in (checkpoint.cut.arrangements, plan.arrangements)
        )
        if had != has:
            found.append(f"operator {name!r} had {_described(had)}, and now has {_described(has)}")
    return found


def _described(kept: Sequence[KeptArrangement]) -> str:
    owners = (f" of {one.kept_by!r}" if one.kept_by != one.operator else "" for one in kept)
    names = (f"{one.name!r}{owner}" for one, owner in zip(kept, owners, strict=True))
    return f"the arrangements {' and '.join(names)}" if kept else "no arrangements"


def _other_groups(checkpoint: Checkpoint, plan: Plan) -> list[str]:
    owned, groups = len(checkpoint.cut.owners), plan.groups
    if not owned or owned == groups.total:
        return []
    alone = groups.names[1:]
    had = owned // groups.count - 1
    return [
        (
            f"the bins of {had} operators moved separately, and now those of {len(alone)} do:"
            f" {_named(alone)}"
        )
    ]
