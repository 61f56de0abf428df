"""Commit markers: how far the sinks of a worker have committed, in the same transaction as the
results.

The marker of a transaction states for each sink a time: all results before it are committed, none
from it on (design 5). It also holds the checksums of the transaction's results, or the checkpoint
whose outbox contents are committed. It includes the timestamp overrides since the worker's last
marker, so no committed result lacks an earlier override. Cost: about 100 bytes per transaction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypedDict

from meander.dataflow.control.timestamp_overrides import TimestampOverride
from meander.dataflow.exactly_once.checksum import Checksum, CommittedChecksum
from meander.schemas.avro import Format
from meander.state.keys.ids import ExecutionId, WorkerId


@dataclass(frozen=True, slots=True)
class CommitMarker:
    """A marker that commits together with the results of one transaction.

    >>> from meander.dataflow.interfaces import Partition
    >>> override = TimestampOverride(0, Partition(3), 4, 9)
    >>> marker = CommitMarker(ExecutionId(7), WorkerId(1), {"sink": 50}, (override,))
    >>> CommitMarker.from_bytes(marker.to_bytes()) == marker
    True
    """

    execution: ExecutionId
    worker: WorkerId
    times: Mapping[str, int]
    """The time of each sink, by name: all earlier results are committed."""
    overrides: tuple[TimestampOverride, ...] = ()
    """The timestamp overrides received since the last marker."""
    checksums: Mapping[str, CommittedChecksum] = field(default_factory=dict)
    """The checksums of the results in the transaction, by sink."""
    sent: int = 0
    """The checkpoint whose contents of the worker's outboxes are all committed; 0 without one."""

    def to_bytes(self) -> bytes:
        """Return the marker as a record of its topic."""
        return _FORMAT.encode(
            {
                "execution": self.execution,
                "worker": self.worker,
                "sinks": [
                    {"sink": sink, "time": time, "out": _out_record(self.checksums.get(sink))}
                    for sink, time in self.times.items()
                ],
                "overrides": [one._asdict() for one in self.overrides],
                "sent": self.sent,
            }
        )

    @staticmethod
    def from_bytes(data: bytes) -> CommitMarker:
        """Undo `to_bytes`. Raise `MeanderError` for an unknown format version."""
        record = _FORMAT.decode(data)
        return CommitMarker(
            ExecutionId(record["execution"]),
            WorkerId(record["worker"]),
            {one["sink"]: one["time"] for one in record["sinks"]},
            tuple(TimestampOverride(**one) for one in record["overrides"]),
            {
                one["sink"]: CommittedChecksum(
                    out["since"], Checksum(out["count"], int.from_bytes(out["digest"], "big"))
                )
                for one in record["sinks"]
                if (out := one["out"]) is not None
            },
            record["sent"],
        )  # fmt: skip


class _OutRecord(TypedDict):
    since: int
    count: int
    digest: bytes
    """Avro has no unsigned integers of 64 bits."""


class _SinkRecord(TypedDict):
    sink: str
    time: int
    out: _OutRecord | None


class _MarkerRecord(TypedDict):
    execution: int
    worker: int
    sinks: list[_SinkRecord]
    overrides: list[dict[str, Any]]
    """The fields of each `TimestampOverride`."""
    sent: int


_FORMAT: Final = Format[_MarkerRecord]("commit_marker")


def _out_record(out: CommittedChecksum | None) -> _OutRecord | None:
    if out is None:
        return None
    since, checksum = out
    return {"since": since, "count": checksum.count, "digest": checksum.digest.to_bytes(8, "big")}
