"""Marks: how far a worker's sinks had come, committed together with the results of before.

A transaction's mark says of each of its worker's sinks: all results before this time are out, none
from it on (design 5). It brings along what sources have ruled since the worker's last one, so what
is out before a time never lacks a ruling of before it. Cost: some 100 bytes a transaction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypedDict

from dataflow.rulings import Ruling
from schemas.avro import Format
from state.ids import Incarnation, WorkerId


@dataclass(frozen=True, slots=True)
class Mark:
    """What one transaction says beside its results.

    >>> from dataflow.protocols import Partition
    >>> mark = Mark(Incarnation(7), WorkerId(1), {"sink": 50}, (Ruling(0, Partition(3), 4, 9),))
    >>> Mark.from_bytes(mark.to_bytes()) == mark
    True
    """

    incarnation: Incarnation
    worker: WorkerId
    times: Mapping[str, int]
    """Of each sink, by name: what is before is out."""
    rulings: tuple[Ruling, ...] = ()
    """Those that have been heard since the last one."""

    def to_bytes(self) -> bytes:
        """The mark as it rests on its topic."""
        return _FORMAT.encode(
            {
                "incarnation": self.incarnation,
                "worker": self.worker,
                "sinks": [{"sink": sink, "time": time} for sink, time in self.times.items()],
                "rulings": [one._asdict() for one in self.rulings],
            }
        )

    @staticmethod
    def from_bytes(data: bytes) -> Mark:
        """Undo `to_bytes`. Raises MeanderError when another format version wrote it."""
        record = _FORMAT.decode(data)
        return Mark(
            Incarnation(record["incarnation"]),
            WorkerId(record["worker"]),
            {one["sink"]: one["time"] for one in record["sinks"]},
            tuple(Ruling(**one) for one in record["rulings"]),
        )  # fmt: skip


class _SinkRecord(TypedDict):
    sink: str
    time: int


class _MarkRecord(TypedDict):
    incarnation: int
    worker: int
    sinks: list[_SinkRecord]
    rulings: list[dict[str, Any]]
    """Of `Ruling`, field by field."""


_FORMAT: Final = Format[_MarkRecord]("mark")
