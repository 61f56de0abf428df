"""What earlier lives of a flow have left on its topics that nobody can name: a life that was killed
wrote for a checkpoint that never came to be, and retires none of those that it had.

Guarantees that nothing goes that the present life or a later one may need, where it is asked only
about records that lay there before that life began. Once its beginning is durable, all go back to
what it has begun with, a savepoint told before, or what comes later. Those after it name records
that are written later, and such as it began with; no key is used twice. So a driver that lives on
may sweep, and no clock says what is earlier. Cost: a key per record that is named.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain

from meander.state.checkpoint.checkpoint import Checkpoint
from meander.state.keys.ids import life_of


@dataclass(frozen=True, slots=True)
class Unnamed:
    """As one life finds it.

    >>> from meander.state.keys.ids import ExecutionId, LayerId, WorkerId
    >>> named, other = (LayerId(ExecutionId(life), WorkerId(0), 3).key(0) for life in (6, 7))
    >>> unnamed = Unnamed(frozenset([named]))
    >>> unnamed.goes(other), unnamed.goes(named), unnamed.goes(b"what a user has put there")
    (True, False, False)
    """

    named: frozenset[bytes]

    @staticmethod
    def of(kept: Iterable[Checkpoint]) -> Unnamed:
        """By all that there are to go back to as a life begins."""
        places = chain.from_iterable(chain(one.places, one.chunks) for one in kept)
        return Unnamed(frozenset(place.key for place in places))

    def goes(self, key: bytes) -> bool:
        """Whether what lies under a key, on either topic, is needed by nobody."""
        return life_of(key) is not None and key not in self.named
