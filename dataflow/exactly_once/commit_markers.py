"""Marks: how far a worker's sinks had come, committed together with the results of before.

A transaction's mark says of each of its worker's sinks: all results before this time are out, none
from it on (design 5), and which of them left with it; or that all is out that a checkpoint has of
the worker's outboxes. It brings along what sources have ruled since the worker's last one, so what
is out before a time never lacks a ruling of before it. Cost: some 100 bytes a transaction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypedDict

from meander.dataflow.control.timestamp_overrides import TimestampOverride
from meander.dataflow.exactly_once.checksum import Checksum, Out
from meander.schemas.avro import Format
from meander.state.keys.ids import ExecutionId, WorkerId


@dataclass(frozen=True, slots=True)
class CommitMarker:
    """What one transaction says beside its results.

    >>> from meander.dataflow.interfaces import Partition
    >>> override = TimestampOverride(0, Partition(3), 4, 9)
    >>> mark = CommitMarker(ExecutionId(7), WorkerId(1), {"sink": 50}, (override,))
    >>> CommitMarker.from_bytes(mark.to_bytes()) == mark
    True
    """

    execution: ExecutionId
    worker: WorkerId
    times: Mapping[str, int]
    """Of each sink, by name: what is before is out."""
    rulings: tuple[TimestampOverride, ...] = ()
    """Those that have been heard since the last one."""
    out: Mapping[str, Out] = field(default_factory=dict)
    """The results in the transaction, by sink; of version 1 nobody knows."""
    sent: int = 0
    """The checkpoint of which all is out that it has of the worker's outboxes; 0 of none."""

    def to_bytes(self) -> bytes:
        """The mark as it rests on its topic."""
        return _FORMAT.encode(
            {
                "execution": self.execution,
                "worker": self.worker,
                "sinks": [
                    {"sink": sink, "time": time, "out": _out_record(self.out.get(sink))}
                    for sink, time in self.times.items()
                ],
                "rulings": [one._asdict() for one in self.rulings],
                "sent": self.sent,
            }
        )

    @staticmethod
    def from_bytes(data: bytes) -> CommitMarker:
        """Undo `to_bytes`. Raises MeanderError when another format version wrote it."""
        record = _FORMAT.decode(data)
        return CommitMarker(
            ExecutionId(record["execution"]),
            WorkerId(record["worker"]),
            {one["sink"]: one["time"] for one in record["sinks"]},
            tuple(TimestampOverride(**one) for one in record["rulings"]),
            {
                one["sink"]: Out(out["since"], Checksum(out["count"], _number(out["digest"])))
                for one in record["sinks"]
                if (out := one["out"]) is not None
            },
            record["sent"],
        )  # fmt: skip


class _OutRecord(TypedDict):
    since: int
    count: int
    digest: bytes
    """Avro has no whole numbers of 64 bits without a sign."""


class _SinkRecord(TypedDict):
    sink: str
    time: int
    out: _OutRecord | None


class _MarkRecord(TypedDict):
    execution: int
    worker: int
    sinks: list[_SinkRecord]
    rulings: list[dict[str, Any]]
    """Of `TimestampOverride`, field by field."""
    sent: int


_FORMAT: Final = Format[_MarkRecord]("mark", earlier=[1, 2])


def _out_record(out: Out | None) -> _OutRecord | None:
    if out is None:
        return None
    since, tally = out
    return {"since": since, "count": tally.count, "digest": tally.digest.to_bytes(8, "big")}


def _number(digest: bytes) -> int:
    return int.from_bytes(digest, "big")
