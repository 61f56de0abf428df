"""The states with which a worker begins: out of layers on the state topic into its stores.

Guarantees that nothing is scheduled before all of them are installed, so every record meets its
key's history, and that they are those that were written (I4), or the flow ends with the layer's
name. Fuelled: a step installs a slice of each of some bins, so that the worker is heard of
meanwhile, and fetching one bin overlaps installing another. Cost: 2 to 3 us a small entry.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Iterable

from dataflow.operators.keyed import Keyed
from dataflow.plan import Plan
from dataflow.protocols import Clock
from schemas.errors import SetupError
from state.checkpoint import BEGINNING, Checkpoint, Lacking
from state.installation import Installation
from state.layer import NO_REMAINDER
from state.manifest import Manifest
from state.topic import StateTopic

log = logging.getLogger(__name__)

ENTRIES = 2048
"""Entries installed per bin and step."""
AT_ONCE = 8
"""Bins installed side by side."""
EVERY = 5.0
"""Seconds between two lines of the log."""


class Loading:
    """What one worker loads before it begins; `step` until `done`."""

    def __init__(
        self,
        operators: Iterable[Keyed],
        manifests: Iterable[Manifest],
        lacking: Iterable[Lacking],
        topic: StateTopic,
        clock: Clock,
    ) -> None:
        self._lacking = {(one.operator, one.bin): one.remainder for one in lacking}
        self._operators = {keyed.name: keyed for keyed in operators}
        self._left = deque(manifests)
        self._topic, self._clock = topic, clock
        self._installing: list[tuple[Manifest, Installation]] = []
        self._total = sum(layer.count for m in self._left for layer in m.layers)
        self._loaded = 0
        self._began = self._said = clock.monotonic()

    @property
    def done(self) -> bool:
        """Whether all is installed."""
        return not (self._left or self._installing)

    @property
    def left(self) -> list[Manifest]:
        """The bins that are not installed, as they lie on the topic."""
        return [*self._left, *(manifest for manifest, _ in self._installing)]

    @property
    def lacking(self) -> list[Lacking]:
        """What the layers of these lack."""
        places = {(manifest.operator, manifest.bin) for manifest in self.left}
        return [Lacking(*at, rest) for at, rest in self._lacking.items() if at in places]

    def step(self) -> bool:
        """Install a slice of each bin under way; whether a bin was begun or finished, or any key
        installed. Raises LayerCorrupt where a layer is not what was written."""
        before = len(self._left), self._loaded
        while self._left and len(self._installing) < AT_ONCE:
            manifest = self._left.popleft()
            store = self._operators[manifest.operator].store
            self._installing.append((manifest, Installation(store, manifest, self._topic)))
        for arrival in list(self._installing):
            if arrival[1].step(ENTRIES):
                self._installing.remove(arrival)
                self._installed(*arrival)
        self._tell()
        return before != (len(self._left), self._loaded)

    def _installed(self, manifest: Manifest, installation: Installation) -> None:
        keyed = self._operators[manifest.operator]
        keyed.trace.adopt(manifest)
        remainder = self._lacking.get((manifest.operator, manifest.bin), NO_REMAINDER)
        keyed.arrivals.add(manifest.bin, remainder, installation.timers)
        self._loaded += installation.count

    def _tell(self) -> None:
        now = self._clock.monotonic()
        if not self.done and now < self._said + EVERY:
            return
        self._said = now
        seconds = now - self._began
        rate = self._loaded / seconds if seconds else 0.0
        if self.done:
            log.info("begins with %s keys, loaded in %.1f s", f"{self._loaded:,}", seconds)
        elif rate:
            log.info(
                "has loaded %s of %s keys (%s/s), %.0f s left",
                f"{self._loaded:,}", f"{self._total:,}", f"{rate:,.0f}",
                (self._total - self._loaded) / rate,
            )  # fmt: skip


def expect_fits(checkpoint: Checkpoint, plan: Plan) -> None:
    """Raises SetupError where a flow cannot start from a checkpoint."""
    _expect_states(checkpoint, plan)
    if wrong := _misfits(checkpoint, plan):
        raise SetupError(
            f"flow {plan.flow.name!r}, checkpoint {checkpoint.number}",
            "; ".join(wrong),
            "run the flow as it was until nothing of that is left, or have it start anew: delete"
            " its internal topics",
        )


def _misfits(checkpoint: Checkpoint, plan: Plan) -> list[str]:
    """What of a cut has no place in a flow."""
    cut, sources = checkpoint.cut, {source.name for source in plan.sources}
    read = {one.source for one in cut.positions} - sources
    keyed = {node.name for node in plan.keyed}
    asked = {one.operator for one in cut.notices} - keyed
    held = Counter[str]()
    for piece in cut.pieces:
        ports = plan.ports.get(piece.node)
        if ports is None or piece.input >= len(ports.inputs):
            held[piece.node] += piece.records
    return [
        *(f"it says how far source {name!r} was read, and the flow has none of that name"
          for name in sorted(read)),
        *(f"keys have asked operator {name!r} for calls, and the flow has none of that name"
          for name in sorted(asked)),
        *(f"{count:,} records are on their way to operator {name!r}, and the flow has none of that"
          " name" for name, count in sorted(held.items())),
        *_other_groups(checkpoint, plan),
    ]  # fmt: skip


def _other_groups(checkpoint: Checkpoint, plan: Plan) -> list[str]:
    owned = len(checkpoint.cut.owners)
    if not owned or owned == plan.groups.total:
        return []
    return ["other operators move alone in the flow than did"]


def _anew(checkpoint: Checkpoint) -> str:
    """What to do where a checkpoint is of no use."""
    if checkpoint.cut == BEGINNING:
        return "write it anew with meander bootstrap --replace"
    return (
        "name and define the flow's operators as they were, or delete the flow's topic of"
        " checkpoints to have it start from nothing"
    )


def _expect_states(checkpoint: Checkpoint, plan: Plan) -> None:
    flow = plan.flow
    codecs = {keyed.name: keyed.codec.name for keyed in plan.keyed}
    where = f"flow {flow.name!r}, checkpoint {checkpoint.number}"
    remedy = _anew(checkpoint)
    if checkpoint.space != flow.space:
        raise SetupError(
            where,
            f"it is of {checkpoint.space.count} bins, and the flow has {flow.space.count}",
            f"give the flow bins={checkpoint.space.bits}, or {remedy}",
        )
    for manifest in checkpoint.manifests:
        codec = codecs.get(manifest.operator)
        if codec is None:
            cause = f"it holds states of {manifest.operator!r}, and the flow has no such operator"
            known = ", ".join(map(repr, codecs)) or "none"
            raise SetupError(where, f"{cause} (of those with state: {known})", _anew(checkpoint))
        for layer in manifest.layers:
            if layer.codec != codec:
                raise SetupError(
                    where,
                    f"the states of {manifest.operator!r} were written with codec"
                    f" '{layer.codec}', and the operator's is '{codec}'",
                    f"give it that codec, or {remedy}",
                )
