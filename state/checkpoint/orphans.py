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
from meander.state.keys.ids import execution_of


@dataclass(frozen=True, slots=True)
class Orphans:
    """A set that recognizes orphans as one execution finds them.

    >>> from meander.state.keys.ids import ExecutionId, LayerId, WorkerId
    >>> named, other = (LayerId(ExecutionId(n), WorkerId(0), 3).key(0) for n in (6, 7))
    >>> orphans = Orphans(frozenset([named]))
    >>> orphans.includes(other), orphans.includes(named), orphans.includes(b"a key of a user")
    (True, False, False)
    """

    referenced: frozenset[bytes]

    @staticmethod
    def of(retained: Iterable[Checkpoint]) -> Orphans:
        """Return the orphans beside all checkpoints from which this execution may restart."""
        locations = chain.from_iterable(chain(one.locations, one.chunks) for one in retained)
        return Orphans(frozenset(location.key for location in locations))

    def includes(self, key: bytes) -> bool:
        """Return whether the record with a key, on either topic, is an orphan."""
        return execution_of(key) is not None and key not in self.referenced
