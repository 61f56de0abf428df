"""Whether a flow can start from a checkpoint, and from what of it.

Guarantees that each mismatch is named, all at once, and that nothing is left out unless that is
allowed; an operator that the checkpoint does not know starts empty. Records in flight go on only
where what comes has come through the same (`api/lineage.py`). Cost: O(manifests, pieces), once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from meander.dataflow.api.plan import Plan
from meander.dataflow.control.decisions import Begins
from meander.dataflow.exactly_once.commit_history import History
from meander.schemas.errors import SetupError
from meander.schemas.log_lines import LineLogger
from meander.state.checkpoint.checkpoint import BEGINNING, Checkpoint, InputLineage

log = LineLogger(__name__)


def expect_fits(
    checkpoint: Checkpoint, plan: Plan, allow_dropped: bool = False, outside: Sequence[str] = (),
    twice: Sequence[str] = (), earlier: int | None = None, skip: str = "",
) -> None:  # fmt: skip
    """Raises SetupError where a flow cannot start from a checkpoint, with all that is in the way;
    `outside` is what its topics are in the way with, and `skip` how that is passed over, if it can
    be; `twice` what would come twice, `earlier` the number of another to start from. What the flow
    has no place for may be dropped, and is told in the log."""
    states, in_flight = _strange(checkpoint, plan), _unplaced(checkpoint, plan)
    strange = [*states, *in_flight]
    bins, codecs, groups = _bins(checkpoint, plan), _codecs(checkpoint, plan), []
    if not bins:
        groups = _other_groups(checkpoint, plan)
    wrong = [*bins, *codecs, *groups, *([] if allow_dropped else strange), *outside, *twice]
    if wrong:
        help = [f"give the flow bins={checkpoint.space.bits}"] if bins else []
        help += ["give it that codec"] if codecs else []
        if in_flight and not allow_dropped:
            help.append(_settled(plan.flow.name))
        if strange and not allow_dropped and checkpoint.cut != BEGINNING:
            help.append("drop what the flow has no place for with --allow-dropped-state")
        help += [skip] if skip else []
        help += ["have it come twice with --allow-nondeterminism"] if twice else []
        if earlier is not None and strange and not (bins or outside or twice):
            help.append(f"go on from an earlier checkpoint, such as --from {earlier}")
        anew = (
            "write it anew with meander bootstrap --replace"
            if checkpoint.cut == BEGINNING
            else f"define the flow as it was, or have it start anew with meander reset"
            f" {plan.flow.name}"
        )
        where = f"flow {plan.flow.name!r}, checkpoint {checkpoint.number}"
        raise SetupError(where, "; ".join(wrong), ", or ".join([*help, anew]))
    for one in strange:
        log.warning("state_dropped", checkpoint=checkpoint.number, state=one)


def misplaced(begun: Begins, plan: Plan) -> list[str]:
    """What of a flow has another place than in the life that has begun last: bins and rulings are
    known by these places alone."""
    return [
        f"{what} were {_named(had)}, and are {_named(has)}, in another order or others in their"
        " midst"
        for what, had, has in (
            ("groups of operators that move together", begun.groups, tuple(plan.groups.names)),
            ("sources", begun.sources, tuple(one.name for one in plan.sources)),
        )
        if has[: len(had)] != had and (what != "sources" or plan.flow.delivery == "exactly_once")
    ]


def come_twice(checkpoint: Checkpoint, plan: Plan, history: History) -> list[str]:
    """What is out that a flow would give once more where it goes on from a checkpoint, as nothing
    says that it is the same."""
    if plan.flow.delivery == "at_least_once":
        return []
    sent, timed = history.last_sent, history.timed(checkpoint.execution)
    found = [
        f"sink {sink!r} has sent results since without waiting for checkpoints of them, as it does"
        " now"
        for sink in sorted(timed & plan.outboxes)
    ]
    new = sorted(plan.timed.keys() - timed)
    found += [
        f"sink {sink!r} has sent results since, and the flow has none of that name: if one of"
        f" {_named(new)} has taken its place, that would send them again"
        for sink in sorted(timed.difference(plan.before) if new else ())
    ]
    if sent > checkpoint.number:
        found.append(
            f"what checkpoint {sent} held in outboxes is out, and what would come of the same"
            " records now may be something else"
        )
    return found


def _named(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names)) or "none"


def fitting(checkpoint: Checkpoint, plan: Plan) -> Checkpoint:
    """What of a checkpoint the flow has a place for."""
    cut, keyed = checkpoint.cut, {node.name for node in plan.keyed}
    strange = _strange_places(checkpoint, plan)
    sources = {source.name for source in plan.sources}
    return replace(
        checkpoint,
        manifests=tuple(one for one in checkpoint.manifests if one.operator in keyed),
        cut=replace(
            cut,
            lacking=tuple(one for one in cut.lacking if one.operator in keyed),
            bundles=tuple(one for one in cut.bundles if one.operator in keyed),
            positions=tuple(one for one in cut.positions if one.source in sources),
            notices=tuple(one for one in cut.notices if one.operator in keyed),
            pieces=tuple(one for one in cut.pieces if one.at not in strange),
        ),
    )


def _strange(checkpoint: Checkpoint, plan: Plan) -> list[str]:
    """What the flow has no place for, but for records in flight."""
    cut, known = checkpoint.cut, [node.name for node in plan.keyed]
    return [
        *_strange_states(checkpoint, known),
        *(f"it says how far source {name!r} was read, and the flow has none of that name"
          for name in sorted({one.source for one in cut.positions}
                             - {source.name for source in plan.sources})),
        *(f"keys have asked operator {name!r} for calls, and the flow has none of that name"
          for name in sorted({one.operator for one in cut.notices}.difference(known))),
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
        f" keys, {size:,} bytes; the flow's own with state: {there})"
        for name, size in sorted(sizes.items())
    ]


def _unplaced(checkpoint: Checkpoint, plan: Plan) -> list[str]:
    """The records in flight that the flow has no place for."""
    strange, held = _strange_places(checkpoint, plan), Counter[tuple[str, str]]()
    for piece in checkpoint.cut.pieces:
        if piece.at in strange:
            what = "an outbox of sink" if plan.in_outbox(piece) else "operator"
            held[f"{what} {piece.node!r}", strange[piece.at]] += piece.records
    return [f"{count:,} records are on their way to {at}, {why}"
            for (at, why), count in sorted(held.items())]  # fmt: skip


def _strange_places(checkpoint: Checkpoint, plan: Plan) -> Mapping[tuple[str, int], str]:
    """The inputs at which records in flight cannot go on, and why; of those of which the checkpoint
    does not say how records came there, the names have to do."""
    had, has = {way.at: way for way in checkpoint.cut.ways}, plan.ways
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
        elif at in keyless and plan.input_at(*at) in plan.with_keys:
            found[at] = "which has keys there, and they have none"
    return found


def _others(had: InputLineage, has: InputLineage) -> list[str]:
    """What is another at an input: records may have a new reader more, and nothing else."""
    found = list[str]()
    if had.behind != has.behind:
        was, now = (", then ".join(way.behind) for way in (had, has))
        found.append(f"stood behind {was}, and stands behind {now}")
    if not {*had.before} <= {*has.before}:
        was, now = (" and ".join(way.before) or "nothing" for way in (had, has))
        found.append(f"led to {was}, and leads to {now}")
    return found


def _settled(flow: str) -> str:
    """How to change a flow with records in flight."""
    return (
        "run the flow as it was, have nothing in flight in a checkpoint by meander checkpoint"
        f" {flow} --policy aligned --savepoint settled, stop it, and run the changed one with"
        " --from settled"
    )


def _bins(checkpoint: Checkpoint, plan: Plan) -> list[str]:
    had, has = checkpoint.space.count, plan.flow.space.count
    return [] if had == has else [f"it is of {had} bins, and the flow has {has}"]


def _codecs(checkpoint: Checkpoint, plan: Plan) -> list[str]:
    codecs = {keyed.name: keyed.codec.name for keyed in plan.keyed}
    others = {
        (manifest.operator, layer.codec)
        for manifest in checkpoint.manifests
        for layer in manifest.layers
        if layer.codec != codecs.get(manifest.operator, layer.codec)
    }
    return [
        f"the states of {name!r} were written with codec '{codec}', and the operator's is"
        f" '{codecs[name]}'"
        for name, codec in sorted(others)
    ]


def _other_groups(checkpoint: Checkpoint, plan: Plan) -> list[str]:
    owned, groups = len(checkpoint.cut.owners), plan.groups
    if not owned or owned == groups.total:
        return []
    alone = groups.names[1:]
    had = owned // groups.count - 1
    return [f"the bins of {had} operators were moved alone, of {len(alone)} are: {_named(alone)}"]
