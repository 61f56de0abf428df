"""The benchmark of Avro gives each figure that the docs list."""

from __future__ import annotations

import re

import pytest

from benchmarks import avro
from tests.support.doc_blocks import ROOT


def test_the_docs_list_the_figures_of_the_benchmark(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(avro, "RECORDS", 40)
    monkeypatch.setattr(avro, "RUNS", 1)
    avro.main()
    figures = dict(line.split() for line in capsys.readouterr().out.splitlines())
    listed = re.findall(
        r"^\| (avro_\w+) \|", (ROOT / "docs/benchmarks.md").read_text(), re.MULTILINE
    )
    assert [*figures] == listed
    assert all(int(rate.replace(",", "")) > 0 for rate in figures.values())
