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
    return f"{quote(label, safe='')} {len(names)}:{_hash(names)}"


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


def _hash(names: Sequence[str]) -> str:
    return xxhash.xxh3_64_hexdigest("\0".join(names).encode())
