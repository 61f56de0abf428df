"""That each command on the control topic has been answered to its end, also where the driver that
had obeyed it was lost."""

from __future__ import annotations

import json

from meander.connectors.topics.internal_topics import TopicNames
from meander.schemas.control import is_command
from tests.support.kafka.topics import consume_all

ENDS = "rejected", "completed", "aborted", "rescaled", "checkpointed", "checkpoint_failed"


def unanswered(bootstrap: str, called: TopicNames) -> list[str]:
    """Commands on the control topic for which the status topic tells no end, but for stops."""
    events = [json.loads(one.value or b"") for one in consume_all(bootstrap, called.status)]
    ends = [event for event in events if event["type"] in ENDS]
    ids = {end.get(field) for end in ends for field in ("id", "by")}
    offsets = {end.get("offset") for end in ends}
    return [
        f"offset {record.offset}: {record.value!r:.300}"
        for record in consume_all(bootstrap, called.control)
        if is_command(record.value)
        and record.offset not in offsets
        and _awaited(record.value) not in {None, *ids}
    ]


def _awaited(value: bytes | None) -> str | None:
    """The name under which a record is answered, unless by its offset; None of a stop."""
    try:
        command = json.loads(value or b"")
        return None if command["type"] == "stop" else str(command["id"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return ""
