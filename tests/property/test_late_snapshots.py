"""I2: a bin that leaves while it waits to be written is left alone by whoever had it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meander.dataflow.migration import incremental_snapshots
from meander.state.store.store import Databases
from tests.support.property.case_run import CaseRun
from tests.support.property.cases import (
    random_case,
    with_aborts,
    with_comings_and_goings,
    with_full_bins,
)

SEEDS = range(12, 18)


def test_a_bin_that_leaves_while_others_are_written_is_its_new_owners(
    databases: Databases, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(incremental_snapshots, "AT_ONCE", 1)
    for seed in SEEDS:
        case = replace(with_full_bins(random_case(seed)), snapshot_interval=0.001)
        CaseRun(with_comings_and_goings(with_aborts(case))).check(databases, 98_000_000 + seed)
