"""The table of `meander checkpoints`."""

from __future__ import annotations

from io import StringIO

from rich.console import Console

from meander.app.cli.views.checkpoints import COLUMNS, CheckpointRow
from meander.app.common.output import CommandOutput


def test_each_checkpoint_takes_one_line_of_80_characters() -> None:
    rows = [
        CheckpointRow(
            number=12_345 + n, savepoint="stop-20261128T081200", next_run=not n, age_s=86_400,
            policy="unaligned_max_inflight", alignment_ms=12_345, write_ms=12_345, entries=10**9,
            state_bytes=123_456_789, in_flight_bytes=123_456_789, in_flight=10**6, workers=16,
            bins=65_536,
        )
        for n in range(2)
    ]  # fmt: skip
    console = Console(file=StringIO(), width=80)
    output = CommandOutput(console, as_json=False)
    output.table("checkpoints of f", COLUMNS, [row.cells() for row in rows], names=2)
    assert isinstance(console.file, StringIO)
    lines = [line.rstrip() for line in console.file.getvalue().splitlines() if line.strip()]
    _title, *heads, _rule, first, second = lines
    assert sorted(" ".join(heads).split()) == sorted(" ".join(COLUMNS).split())
    for number, line in enumerate((first, second), 12_345):
        assert line.split()[0] == f"{number:,}"
        assert line.split()[1] == "stop-20261128T081200"
        assert line.endswith(" 123.5 MB")
