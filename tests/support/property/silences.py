"""Silences of sources that never run dry: each moment between two reads counts as one.

A list ends where its records end, so no partition of it is silent for long. An advance by the clock
must repeat whenever it comes, so it may come here while more is to read.
"""

from __future__ import annotations

import random
from contextlib import AbstractContextManager
from dataclasses import replace
from unittest import mock

from meander.dataflow.operators.source.operator import SourceOperator
from meander.dataflow.operators.source.partitions import SourcePartition
from tests.support.property.cases import Case


def _between_reads(_: SourceOperator, partition: SourcePartition) -> bool:
    return not partition.queue and not partition.replaying


def silences_between_reads() -> AbstractContextManager[object]:
    """While it lasts, a partition is silent unless it has read records to send."""
    return mock.patch.object(SourceOperator, "_is_silent", _between_reads)


def with_some_silences(case: Case) -> Case:
    """Of three cases one follows the clock in the silences of its sources."""
    if case.seed % 3:
        return case
    seconds = random.Random(case.seed).choice([0.001, 0.01, 0.1])
    return replace(case, options=replace(case.options, advance_after=seconds))
