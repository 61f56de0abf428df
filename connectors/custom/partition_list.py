"""The list of a source's partitions, as the decision log keeps it from one run to the next.

Guarantees that a run which would take another partition for the one of a checkpoint is refused. The
decision log holds the number of the names and a hash of them, and the later list has to begin with
the same names.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol
from urllib.parse import quote

import xxhash

from meander.dataflow.operators.error_policy import describe, failure
from meander.schemas.errors import MeanderError, SetupError
from meander.schemas.log_lines import LineLogger

log = LineLogger(__name__)


class PartitionedSource(Protocol):
    """A source that names its partitions."""

    @property
    def label(self) -> str:
        """Return its name in errors."""

    def partitions(self) -> Sequence[str]:
        """Return the names of its partitions."""


def partition_list(label: str, names: Sequence[str]) -> str:
    """Return a source's label, and the number and hash of its partitions, as the id of a topic.

    >>> partition_list("my files", ["a"]).partition(":")[0]
    'my%20files 1'
    """
    return f"{key_of(label)} {len(names)}:{_hash(names)}"


def key_of(label: str) -> str:
    """Return the key of a source in the ids of topics."""
    return quote(label, safe="")


def continues(known: str, names: Sequence[str]) -> bool:
    """Return whether a list begins with the names of which the decision log knows number and hash.

    >>> known = partition_list("files", ["a", "b"]).partition(" ")[2]
    >>> continues(known, ["a", "b", "c"]), continues(known, ["a", "aa", "b"]), continues("", ["a"])
    (True, False, False)
    """
    count, _, hash = known.partition(":")
    return count.isdecimal() and int(count) <= len(names) and _hash(names[: int(count)]) == hash


def names_of(source: PartitionedSource) -> list[str]:
    """Return the names of a source's partitions. Raise SetupError where the user's code fails."""
    try:
        return [*source.partitions()]
    except MeanderError:
        raise
    except failure() as error:
        raise SetupError(
            f"source {source.label!r}", f"its partitions cannot be listed: {describe(error)}",
            "correct its method partitions",
        ) from error  # fmt: skip


def expect_same(label: str, known: str, names: Sequence[str]) -> None:
    """Raise SetupError where a worker finds other partitions than the driver."""
    if not continues(known, names):
        raise SetupError(
            f"source {label!r}", f"this worker finds {len(names)} partitions, and not those of the"
            " driver", "let all workers reach the same partitions, in one order",
        )  # fmt: skip


class PartitionNames:
    """The names of a source's partitions, for dead letters. It lists them when the first one is
    asked for, and again for a newer partition.

    >>> from types import SimpleNamespace
    >>> files = SimpleNamespace(label="files", partitions=lambda: ["a", "b"])
    >>> names = PartitionNames(files, partition_list("files", ["a"]).partition(" ")[2])
    >>> names(1), names(2)
    ('b', '')
    """

    def __init__(self, source: PartitionedSource, known: str) -> None:
        """`known` is what the decision log knows of the partitions; '' knows nothing of them."""
        self._source, self._known = source, known
        self._names = list[str]()
        self._lists = True

    def __call__(self, partition: int) -> str:
        """Return the name of a partition; '' where the source does not list it any more."""
        if partition >= len(self._names) and self._lists:
            self._list()
        return self._names[partition] if partition < len(self._names) else ""

    def _list(self) -> None:
        # A dead letter without a name is better than a flow that fails on a bad record.
        try:
            names = names_of(self._source)
            if self._known:
                expect_same(self._source.label, self._known, names)
        except MeanderError as error:
            self._lists = False
            log.warning("partitions_unnamed", source=self._source.label, reason=str(error))
        else:
            self._names = names


def _hash(names: Sequence[str]) -> str:
    return xxhash.xxh3_64_hexdigest("\0".join(names).encode())
