"""The workers of a simulated flow that survive its end, drawn at random."""

from __future__ import annotations

import random
from collections.abc import Mapping

from meander.state.keys.ids import WorkerId
from meander.state.store.store import Database

SURVIVES, SHUFFLED = 0.8, 0.3
"""The probabilities that a worker survives, and that survivors get other numbers."""


def draw_survivors(
    databases: Mapping[WorkerId, Database], chance: random.Random
) -> dict[WorkerId, Database]:
    """Return the databases that survive an execution, some under another worker's number."""
    numbers = [*databases]
    if chance.random() < SHUFFLED:
        chance.shuffle(numbers)
    drawn = zip(numbers, databases.values(), strict=True)
    return {number: database for number, database in drawn if chance.random() < SURVIVES}
