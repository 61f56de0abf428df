"""That each command on the control topic has been answered to its end, once, also where the driver
that had obeyed it was lost."""

from __future__ import annotations

import json
from collections.abc import Iterable

from meander.connectors.topics.internal_topics import TopicNames
from meander.schemas.control import is_command
from tests.support.kafka.topics import consume_all

STARTS = "queued", "accepted", "rescaling", "checkpoint_accepted"
ENDS = "rejected", "completed", "aborted", "rescaled", "checkpointed", "checkpoint_failed"


def repeated(bootstrap: str, called: TopicNames) -> list[str]:
    """Events on the status topic of commands that had had their final answers before."""
    return repeated_events(
        json.loads(one.value or b"") for one in consume_all(bootstrap, called.status)
    )


def repeated_events(events: Iterable[dict[str, object]]) -> list[str]:
    """Events of commands that had had their final answers before.

    A command is known by its id and its offset, as an id may be repeated by mistake. A migration's
    worker may leave after the answer, which `rescaled` reports.

    >>> accepted = {"type": "accepted", "id": "m", "offset": 3}
    >>> repeated_events([accepted, {"type": "completed", "id": "m"}, accepted])
    ["{'type': 'accepted', 'id': 'm', 'offset': 3}"]
    """
    offsets, ended, found = dict[object, object](), set[tuple[object, object]](), list[str]()
    for event in events:
        kind, id = event["type"], event.get("id")
        command = id, event.get("offset", offsets.get(id))
        again = kind in STARTS or (kind in ENDS and kind != "rescaled" and id)
        if again and command in ended:
            found.append(str(event))
        if kind in STARTS:
            offsets[id] = event["offset"]
        elif kind in ENDS:
            ended.add(command)
    return found


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
