"""A migration as it is asked for, and what becomes of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from state.ids import Bin, WorkerId

Strategy = Literal["fluid", "sudden"]


@dataclass(frozen=True, slots=True)
class Migrate:
    """Move bins to a worker: at logical time `time`, or as soon as possible.

    `fluid` moves bin after bin, each completed before the next; `sudden` all at one time.
    """

    id: str
    bins: tuple[Bin, ...]
    worker: WorkerId
    time: int | None = None
    strategy: Strategy = "fluid"


class Refused(Exception):
    """A command that cannot be carried out; the message says what would be right."""
