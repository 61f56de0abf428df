"""Read the contents of an arrangement from a checkpoint on Kafka, whether the flow runs or not.

Guarantees that nothing is written to Kafka. A running flow may meanwhile delete the layers of a
checkpoint that it no longer retains; the read then fails. Cost: one read of the operator's layers,
or of one bin for one key. Memory: all rows of the arrangement.
"""

from __future__ import annotations

from meander.app.recovery.checkpoint_index import (
    CheckpointIndex,
    find_checkpoint,
    newest_usable,
    retained_checkpoints,
)
from meander.app.recovery.restart import read_decisions
from meander.connectors.kafka import client
from meander.connectors.kafka.client import Settings
from meander.connectors.topics.checkpointed_bins import open_bins
from meander.connectors.topics.checkpoints import open_checkpoints
from meander.connectors.topics.internal_topics import TopicNames, expect_started
from meander.dataflow.operators.collection.checkpointed_rows import (
    CollectionRows,
    key_hashes,
    rows_at,
)
from meander.schemas.errors import SetupError
from meander.state.checkpoint.arrangements import KeptArrangement
from meander.state.checkpoint.checkpoint import Checkpoint
from meander.state.keys.ids import Bin


def select_checkpoint(
    settings: Settings, names: TopicNames, flow: str, wanted: str | None
) -> Checkpoint:
    """Return the savepoint of a name or the checkpoint of a number, by default the newest one.

    Raise SetupError where the flow has none, or has never run.
    """
    expect_started(client.admin(settings), names.control, flow)
    index = CheckpointIndex.of(read_decisions(settings, names.decisions))
    with open_checkpoints(settings, names) as reader:
        newest = newest_usable(reader, index, flow, names.checkpoints)
        if newest is None:
            raise SetupError(
                f"flow {flow!r}",
                "it has no checkpoint",
                f"take one with meander checkpoint {flow} while it runs",
            )
        if wanted is None:
            return newest[1]
        among = retained_checkpoints(reader, index)
        return among.found[find_checkpoint(among, index, wanted)]


def read_rows(
    settings: Settings,
    names: TopicNames,
    checkpoint: Checkpoint,
    arrangement: KeptArrangement,
    millis: int | None,
    key: str | None,
) -> CollectionRows:
    """Return the contents of an arrangement at the end of a millisecond, by default at the newest
    time of the checkpoint; with a key its rows alone.

    Raise SetupError where the checkpoint does not tell them.
    """
    operator = arrangement.kept_by
    with open_bins(settings, names, checkpoint, operator) as reader:
        if key is None:
            return rows_at(checkpoint, arrangement, reader.entries(), millis)
        bins = sorted(set(checkpoint.space.bins_of(key_hashes(key)).tolist()))
        entries = reader.entries([Bin(bin) for bin in bins])
        return rows_at(checkpoint, arrangement, entries, millis).of_key(key)
