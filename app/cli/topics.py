"""`meander topics`: list the internal topics of flows, and create topics."""

from __future__ import annotations

import sys
from dataclasses import astuple
from typing import Annotated

import typer
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import NewTopic

from meander.app.cli.command_group import CommandGroup
from meander.app.cli.options import Connection, FlowConnection, connected
from meander.connectors.kafka import client
from meander.connectors.kafka.topic_metadata import partitions_of
from meander.connectors.topics.internal_topics import TopicRow, describe, stems, topic_names
from meander.schemas.errors import SetupError

commands = typer.Typer(
    cls=CommandGroup,
    invoke_without_command=True,
    help="List the internal topics of flows with their purpose, or create topics.",
    epilog="Example: meander topics --flow counts",
)


@commands.callback()
@connected
def topics(
    context: typer.Context,
    flow: Annotated[str | None, typer.Option(help="List only the topics of this flow.")] = None,
    *,
    to: FlowConnection,
) -> None:
    """List the internal topics of flows with their purpose, or create topics."""
    if context.invoked_subcommand is not None:
        return
    admin = client.admin(to.kafka())
    prefix = to.prefix_of(flow)
    flows = [flow] if flow is not None else _flows(admin, prefix)
    rows = [_row(row) for name in flows for row in describe(admin, prefix, name)]
    output = to.output
    output.table("internal topics", ["topic", "purpose", "partitions", "cleanup", "copies"], rows)
    if not flows:
        output.say("No flow has run on this cluster.")


@commands.command(epilog="Example: meander topics create lines counts --partitions 4")
@connected
def create(
    topics: Annotated[list[str], typer.Argument(help="The topics' names.", show_default=False)],
    partitions: Annotated[
        int, typer.Option(min=1, max=100_000, help="Partitions of each topic.")
    ] = 4,
    copies: Annotated[
        int, typer.Option(min=1, max=10_000, help="Copies of each record (replication factor).")
    ] = 1,
    *,
    to: Connection,
) -> None:
    """Create topics for a flow to read or write; existing topics stay as they are."""
    admin = client.admin(to.kafka())
    made = admin.create_topics(
        [NewTopic(name, partitions, copies) for name in dict.fromkeys(topics)],
        operation_timeout=client.REQUEST_TIMEOUT,
        request_timeout=client.REQUEST_TIMEOUT,
    )
    rows, hints = [], []
    for name, future in made.items():
        state = "created"
        try:
            future.result()
        except KafkaException as error:
            reason: KafkaError = error.args[0]
            if (remedy := _REMEDIES.get(reason.code())) is not None:
                cause = f"Kafka refuses to create it ({reason.str()})"
                raise SetupError(f"topic {name!r}", cause, remedy) from None
            if reason.code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise client.translate(error, f"topic {name!r}", admin.bootstrap) from None
            found = partitions_of(admin, name)
            state = "exists" if found == partitions else f"exists, with {found} partitions"
            if found != partitions:
                hints.append(_hint(admin, name, found, partitions))
        rows.append([name, state])
    to.output.table("topics", ["topic", "state"], rows)
    for hint in hints:
        print(hint, file=sys.stderr)


def _hint(admin: client.Admin, topic: str, found: int, asked: int) -> str:
    """Return a remedy for a topic that has another number of partitions."""
    if any(topic in astuple(topic_names("", flow)) for flow in _flows(admin, "")):
        remedy = "leave it as it is: a flow's internal topic needs this number"
    elif found > asked:
        remedy = "use another name, as Kafka never removes partitions"
    else:
        remedy = (
            f"add some with kafka-topics.sh --bootstrap-server {admin.bootstrap} --alter --topic"
            f" {topic} --partitions {asked}; a running flow reads them, too"
        )
    return f"topic {topic!r}: it has {found} partitions, not {asked}; {remedy}."


_REMEDIES = {
    KafkaError.TOPIC_EXCEPTION: "give it a name of letters, digits, '.', '_' and '-', at most 249",
    KafkaError.INVALID_REPLICATION_FACTOR: "give fewer --copies, or start more brokers",
    KafkaError.INVALID_PARTITIONS: "give another number of --partitions",
    KafkaError.POLICY_VIOLATION: "give what the cluster's policy allows, or have it changed",
}
"""The remedy for each refusal of Kafka."""


def _row(row: TopicRow) -> list[object]:
    if not row.exists:
        return [row.name, row.purpose, 0, "does not exist", 0]
    return [row.name, row.purpose, row.partitions, row.cleanup, row.replication]


def _flows(admin: client.Admin, prefix: str) -> list[str]:
    """Return the flows whose internal topics all exist."""
    try:
        present = set(admin.list_topics(timeout=client.REQUEST_TIMEOUT).topics)
    except KafkaException as error:
        raise client.translate(error, "Kafka", admin.bootstrap) from None
    return sorted(stem.removeprefix(prefix) for stem in stems(present) if stem.startswith(prefix))
