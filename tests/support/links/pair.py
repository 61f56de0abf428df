"""Two members on real links with a relay between them."""

from __future__ import annotations

from meander.connectors.links.links import CurveKeys, CurveLinks, Peer
from tests.support.links.members import A, B, peer_of, until
from tests.support.links.relay import Loss, Relay


class Pair:
    """Two members; what A sends to B goes over a relay."""

    def __init__(self, loss: Loss | None = None, **options: float) -> None:
        self.a, self.b = (CurveLinks(me, CurveKeys.generate(), **options) for me in (A, B))  # type: ignore[arg-type]
        self.between = Relay(self.b.address, loss=loss)
        self.a.admit([peer_of(self.b)])
        self.b.admit([peer_of(self.a)])
        self.a.connect([Peer(B, self.between.address, self.b.public)])
        self.b.connect([peer_of(self.a)])

    def close(self) -> None:
        for links in (self.a, self.b):
            links.detach()
            links.close(linger=0)
        self.between.close()

    def nothing_has_come_but(self, frame: bytes) -> None:
        """That B hears A, and has heard nothing else."""
        self.a.send(B, [frame])
        self.a.flush()
        self.a.send_message(B, frame)
        assert until(self.b, self.b.receive) == [(A, [frame])]
        assert until(self.b, self.b.receive_messages) == [(A, frame)]
