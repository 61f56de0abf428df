"""What random flows need: a database for their states, and sight of what they hold."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dataflow.capability import Capability
from state.store import Database


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    database = Database(tmp_path_factory.mktemp("stores"), 32 << 20)
    yield database
    database.close()


@pytest.fixture
def capabilities(monkeypatch: pytest.MonkeyPatch) -> list[Capability]:
    """Every capability that is made while the test lasts."""
    made: list[Capability] = []
    begin = Capability.__init__

    def noted(self: Capability, *words: object) -> None:
        begin(self, *words)  # type: ignore[arg-type]
        made.append(self)

    monkeypatch.setattr(Capability, "__init__", noted)
    return made
