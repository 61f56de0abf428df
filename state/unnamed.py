"""What earlier lives of a flow have left on its topics that nobody can name: a life that was killed
wrote for a checkpoint that never came to be, and retires none of those that it had.

Guarantees that nothing goes that the present life or a later one may need. Once a life's beginning
is durable, all go back to what it has begun with, a savepoint told before, or what comes later.
Those after it name records of their own lives, and such of earlier ones as it began with; no key is
used twice. So what goes stays unneeded, however late, also if a later life has begun: a driver that
lives on may sweep. Cost: a key per record that is named.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain

from state.checkpoint import Checkpoint
from state.ids import Incarnation, life_of


@dataclass(frozen=True, slots=True)
class Unnamed:
    """As one life finds it.

    >>> from state.ids import LayerId, WorkerId
    >>> earlier, own = (LayerId(Incarnation(life), WorkerId(0), 3).key(0) for life in (6, 7))
    >>> unnamed = Unnamed(Incarnation(7), frozenset())
    >>> unnamed.goes(earlier), unnamed.goes(own), unnamed.goes(b"what a user has put there")
    (True, False, False)
    >>> Unnamed(Incarnation(7), frozenset([earlier])).goes(earlier)
    False
    """

    life: Incarnation
    named: frozenset[bytes]

    @staticmethod
    def of(life: Incarnation, kept: Iterable[Checkpoint]) -> Unnamed:
        """By all that there are to go back to as a life begins."""
        places = chain.from_iterable(chain(one.places, one.chunks) for one in kept)
        return Unnamed(life, frozenset(place.key for place in places))

    def goes(self, key: bytes) -> bool:
        """Whether what lies under a key, on either topic, is needed by nobody."""
        life = life_of(key)
        return life is not None and life < self.life and key not in self.named
