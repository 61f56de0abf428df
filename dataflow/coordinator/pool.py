"""The worker pool as the coordinator's side sees it, real or simulated."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from meander.dataflow.control.resources import Resources
from meander.state.keys.ids import WorkerId


class JoiningPool(Protocol):
    """A pool of the joining workers."""

    @property
    def ready(self) -> Sequence[WorkerId]:
        """The joining workers that can become members now."""

    def expect_slots(self, workers: Mapping[WorkerId, Resources], /) -> None:
        """Raise CommandError where some of these workers would find no free slot."""

    def launch(self, workers: Mapping[WorkerId, Resources], /) -> None:
        """Start workers, each where its resources say."""

    def drop(self, worker: WorkerId, why: str, members: Collection[WorkerId], /) -> None:
        """Continue without a worker; `dropped` returns it with the reason."""

    def dropped(self) -> Sequence[tuple[WorkerId, str]]:
        """Return the workers dropped since the last call, with the reasons."""


class RescalablePool(Protocol):
    """A worker pool."""

    @property
    def handles(self) -> Collection[WorkerId]:
        """The workers that are members."""

    @property
    def joining(self) -> JoiningPool:
        """The joining workers."""

    @property
    def working(self) -> bool:
        """Whether every worker has opened its topics and runs its loop."""

    @property
    def places(self) -> Mapping[WorkerId, Resources]:
        """Where each member runs, as far as that is known."""

    def promote(self, worker: WorkerId, /) -> None:
        """Make a ready worker a member."""

    def release(self, worker: WorkerId, /) -> None:
        """Let a worker exit that has left the flow."""

    def removed(self) -> Sequence[tuple[WorkerId, dict[str, int]]]:
        """Return the workers that have left since the last call, with their last counters."""
