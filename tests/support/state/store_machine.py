"""What the random runs of a store against a dictionary have in common: its database, and scans that
are finished at the end, after whatever else has happened in between."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from tempfile import TemporaryDirectory

from hypothesis.stateful import RuleBasedStateMachine

from meander.state.encoding.codec import encode
from meander.state.store.store import Database, Store

Entries = list[tuple[bytes, bytes]]
"""Keys and encoded states."""


def entries_of(held: Mapping[bytes, object]) -> Entries:
    """What a scan of a bin is to yield that holds these states."""
    return [(key, encode(held[key])) for key in sorted(held)]


class StoreMachine(RuleBasedStateMachine):
    """Runs on one database, within a budget."""

    def open_database(self, budget: int) -> None:
        self.folder = TemporaryDirectory()
        self.database = Database(self.folder.name, budget_bytes=budget)
        self.scans: list[tuple[Iterator[tuple[bytes, bytes]], Entries]] = []

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            for scan, expected in self.scans:
                assert list(scan) == expected
            self.database.close()
            self.folder.cleanup()

    def begin(self, store: Store, bin: int, held: Mapping[bytes, object], taken: int) -> None:
        """Scan a bin that holds these states, and take so many entries now."""
        expected = entries_of(held)
        scan = store.scan(bin)
        assert [entry for entry, _ in zip(scan, range(taken), strict=False)] == expected[:taken]
        # `zip` takes one entry more than it gives, where there is one.
        self.scans.append((scan, expected[taken + 1 :]))
