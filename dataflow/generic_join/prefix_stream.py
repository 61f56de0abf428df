"""Streams of prefixes, between the steps of a join."""

from __future__ import annotations

from typing import Self

from meander.dataflow.api.extensible import Extensible
from meander.dataflow.api.nodes import ExchangeNode


class PrefixStream(Extensible):
    """A stream of prefixes."""

    def by_key(self) -> Self:
        """Send each prefix to the owner of its key, which has the edges of that key."""
        name = self._flow.name_for(f"{self._at.node.name} exchange")
        return self._behind(ExchangeNode(name, self._at, "fail", collection=True))
