"""Orphans: records that earlier executions left on the topics of a flow, which no checkpoint
references.

An execution that was killed may have written for a checkpoint that never completed, and it deletes
none of its records. Guarantees that no orphan is needed by this execution or a later one. The
caller asks only about records that lay on the topic before this execution started. Once its start
is durable, a restart reads the checkpoint of that start, an earlier savepoint or a later
checkpoint. Later checkpoints reference later records, and records that the start referenced; no key
is used twice. So even an outdated driver may clean up, and no clock decides which record is
earlier. Cost: one key per referenced record.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain

from meander.state.checkpoint.checkpoint import Checkpoint
from meander.state.keys.ids import life_of


@dataclass(frozen=True, slots=True)
class Unnamed:
    """A set that recognizes orphans as one execution finds them.

    >>> from meander.state.keys.ids import ExecutionId, LayerId, WorkerId
    >>> named, other = (LayerId(ExecutionId(life), WorkerId(0), 3).key(0) for life in (6, 7))
    >>> unnamed = Unnamed(frozenset([named]))
    >>> unnamed.goes(other), unnamed.goes(named), unnamed.goes(b"what a user has put there")
    (True, False, False)
    """

    named: frozenset[bytes]

    @staticmethod
    def of(kept: Iterable[Checkpoint]) -> Unnamed:
        """Return the orphans beside all checkpoints from which this execution may restart."""
        places = chain.from_iterable(chain(one.places, one.chunks) for one in kept)
        return Unnamed(frozenset(place.key for place in places))

    def goes(self, key: bytes) -> bool:
        """Return whether the record with a key, on either topic, is an orphan."""
        return life_of(key) is not None and key not in self.named
