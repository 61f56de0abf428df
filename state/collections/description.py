"""Descriptions of layers: which updates a layer holds, and which times it still tells apart."""

from __future__ import annotations

from dataclasses import dataclass

from meander.state.times.antichain import Antichain


@dataclass(frozen=True, slots=True)
class LayerDescription:
    """A description of the updates in one layer (differential dataflow, "Clear semantics").

    The layer holds exactly the updates whose times are at or after `lower` and not at or after
    `upper`. Its times answer comparisons with times at or after `since` alone.

    >>> early = LayerDescription(Antichain.of(0), Antichain.of(5), Antichain.of(0))
    >>> late = LayerDescription(Antichain.of(5), Antichain.of(9), Antichain.of(4))
    >>> early.followed_by(late), early.then(late, Antichain.of(4)).upper.times
    (True, (9,))
    """

    lower: Antichain
    upper: Antichain
    since: Antichain

    def followed_by(self, later: LayerDescription) -> bool:
        """Return whether another layer holds the updates that come next."""
        return self.upper == later.lower

    def then(self, later: LayerDescription, since: Antichain) -> LayerDescription:
        """Return the description of both layers as one, with times advanced to `since`."""
        assert self.followed_by(later), "only adjacent layers merge"
        return LayerDescription(self.lower, later.upper, since)

    def precedes(self, time_bound: Antichain) -> bool:
        """Return whether some update of the layer may be before a time of `time_bound`.

        >>> lower, upper, since = map(Antichain.of, [(3, 4), (5, 6), (0, 0)])
        >>> layer = LayerDescription(lower, upper, since)
        >>> layer.precedes(Antichain.of((7, 2))), layer.precedes(Antichain.of((7, 5)))
        (False, True)
        """
        return any(self.lower.less_equal(time) for time in time_bound)
