"""`meander dead-letters`: print dead letters by operator and reason, or as a whole."""

from __future__ import annotations

import base64
from array import array
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from meander.app.common.output import CommandOutput, at_millis
from meander.connectors.topics.dead_letter_replay import ReplayCounts, Selection
from meander.connectors.topics.dead_letters import DeadLetterRecord, ReplayMark
from meander.dataflow.metrics.counters import counted
from meander.schemas.dead_letter import OriginalRecord, ReadHeaders, RecordPlace

FIELDS = ["operator", "reason", "count", "replayed", "first", "last", "partitions"]
"""The fields of a JSON line. The table leaves out some, so that a reason has room within 80
characters."""
MAX_REASON, MAX_CELL = 200, 100
"""The most characters of a reason in the list, and in a table."""
MAX_GROUPS = 1000
"""The most reasons that the list tells apart; the others have one line per operator."""
MAX_NAMES = 100
"""The most names of partitions of one line."""
OTHERS = "other reasons"


@dataclass(slots=True)
class _Group:
    """The dead letters of one operator with one reason."""

    first: int
    last: int
    offsets: array[int] = field(default_factory=lambda: array("q"))
    names: dict[str, None] = field(default_factory=dict)
    """The names of the partitions, in the order of their first dead letters."""


class LetterGroups:
    """The dead letters of a flow by operator and reason."""

    def __init__(self, chosen: Callable[[DeadLetterRecord], bool]) -> None:
        self._chosen = chosen
        self._groups = dict[tuple[str, str], _Group]()
        self._marked = set[int]()

    def take(self, one: DeadLetterRecord | ReplayMark) -> None:
        """Count a dead letter, or a mark."""
        if isinstance(one, ReplayMark):
            self._marked.update(one.offsets)
        elif self._chosen(one):
            key = one.operator, one.reason[:MAX_REASON]
            if key not in self._groups and len(self._groups) >= MAX_GROUPS:
                key = one.operator, OTHERS
            group = self._groups.setdefault(key, _Group(one.at_ms, one.at_ms))
            group.first, group.last = min(group.first, one.at_ms), max(group.last, one.at_ms)
            group.offsets.append(one.offset)
            name = "" if one.source_place is None else one.source_place.partition_name
            if name and len(group.names) < MAX_NAMES:
                group.names[name] = None

    @property
    def rows(self) -> list[tuple[str, str, int, int, int, int, list[str]]]:
        """Return the cells of all groups, the most frequent first: operator, reason, count, how
        many were produced again, the times of the first and the last failure, and the names of at
        most `MAX_NAMES` partitions of a source beside Kafka."""
        rows = [
            (
                operator, reason, len(group.offsets),
                sum(offset in self._marked for offset in group.offsets), group.first, group.last,
                [*group.names],
            )
            for (operator, reason), group in self._groups.items()
        ]  # fmt: skip
        return sorted(rows, key=lambda row: (-row[2], row[:2]))


def list_groups(output: CommandOutput, flow: str, groups: LetterGroups) -> None:
    """Print the dead letters of a flow by operator and reason."""
    rows = groups.rows
    if output.as_json:
        for row in rows:
            output.line(dict(zip(FIELDS, row, strict=True)))
        return
    if not rows:
        output.say(f"flow {flow!r} has no such dead letters")
        return
    replayed = ["replayed"] if any(row[3] for row in rows) else []
    cells = [
        [row[0], _cut(row[1]) + _names(row[6]), *row[2 : 3 + len(replayed)], _second(row[5])]
        for row in rows
    ]
    output.table(
        f"dead letters of {flow}", ["operator", "reason", "count", *replayed, "last"], cells
    )


def show_letters(
    output: CommandOutput,
    letters: Iterable[DeadLetterRecord],
    marked: set[int],
    originals: Mapping[RecordPlace, OriginalRecord],
) -> None:
    """Print dead letters as a whole, each with its original record where that is known. `originals`
    has records that dead letters do not carry."""
    for one in letters:
        original = one.record_in(originals)
        if output.as_json:
            output.line(_fields(one, one.offset in marked, original))
        else:
            output.say(_text(one, one.offset in marked, original))


def report_replay(
    output: CommandOutput, found: Selection, done: ReplayCounts, *, dry_run: bool = False
) -> None:
    """Print what a replay has done, or would do, and which dead letters it leaves out."""
    if output.as_json:
        output.line(
            {
                "type": "replay", "dead_letters": done.letters, "records": done.records,
                "produced_before": found.replayed, "without_record": found.without_record,
                "beside_kafka": found.beside_kafka, "gone": done.gone, "dry_run": dry_run,
            }
        )  # fmt: skip
        return
    verb = "would be produced again" if dry_run else "produced again"
    letters, records = counted(done.letters, "dead letter"), counted(done.records, "record")
    output.say(f"{letters} {verb}, {records}")
    if found.replayed:
        were = "was" if found.replayed == 1 else "were"
        output.say(f"{found.replayed:,} {were} produced again before; --again takes them, too")
    if (calls := found.without_record - found.beside_kafka) == 1:
        output.say("1 is a timer, a notification or a change, which no topic holds")
    elif calls:
        output.say(f"{calls:,} are timers, notifications or changes, which no topic holds")
    if found.beside_kafka:
        kind = "is a record" if found.beside_kafka == 1 else "are records"
        output.say(
            f"{found.beside_kafka:,} {kind} of files or other sources, which no topic holds: add"
            " corrected records to their source"
        )
    if done.gone:
        have = "has" if done.gone == 1 else "have"
        output.say(f"{done.gone:,} {have} no record any more, in the dead letter or on its topic")


def _fields(
    one: DeadLetterRecord, replayed: bool, original: OriginalRecord | None
) -> dict[str, object]:
    place = one.place
    return {
        "offset": one.offset,
        "failed_ms": one.at_ms,
        "operator": one.operator,
        "kind": one.kind,
        "reason": one.reason,
        "origin": one.origin or None,
        "topic": None if place is None else place.topic,
        **_numbers(one),
        "time_ms": one.time_ms,
        "worker": one.worker,
        "replayed": replayed,
        "key": _json(one.key),
        "value": _json(one.value),
        "headers": _json_headers(one.headers),
        "trace": one.trace,
        "not_carried": one.not_carried or None,
        "original": None if original is None else {
            "key": _json(original.key),
            "value": _json(original.value),
            "headers": _json_headers(original.headers),
            "time_ms": original.time_ms,
        },
    }  # fmt: skip


def _numbers(one: DeadLetterRecord) -> dict[str, object]:
    """Return where the record lies on its topic, or in its source."""
    partition = name = offset = None
    if one.place is not None:
        partition, offset = one.place.partition, one.place.offset
    elif (inside := one.source_place) is not None:
        partition, name, offset = inside.partition, inside.partition_name or None, inside.position
    return {"partition": partition, "partition_name": name, "record_offset": offset}


def _where(one: DeadLetterRecord) -> str:
    if (place := one.place) is not None:
        return f"topic {place.topic!r}, partition {place.partition}, offset {place.offset}"
    if (inside := one.source_place) is not None:
        partition = repr(inside.partition_name) if inside.partition_name else inside.partition
        return f"source {one.origin!r}, partition {partition}, position {inside.position}"
    return f"{one.kind} of operator {one.origin!r}"


def _text(one: DeadLetterRecord, replayed: bool, original: OriginalRecord | None) -> str:
    lines = [
        f"dead letter {one.offset} of operator {one.operator!r}",
        f"  reason    {one.reason}",
        f"  failed    {at_millis(one.at_ms)}, on worker {one.worker}",
        f"  from      {_where(one)}",
        f"  time      {at_millis(one.time_ms)}",
        f"  key       {_shown(one.key)}",
        f"  value     {_shown(one.value)}",
    ]
    if replayed:
        lines.append("  replayed  yes")
    if original is not None:
        lines += [
            f"  original  key {_shown(original.key)}, {at_millis(original.time_ms)}",
            f"            {_shown(original.value)}",
            *(f"            {name}: {_shown(value)}" for name, value in original.headers),
        ]
    elif one.place is not None:
        lines.append("  original  not carried, and not read from its topic")
        lines += [f"            {one.not_carried}"] if one.not_carried else []
    lines += [f"  {line}" for line in one.trace.splitlines()]
    return "\n".join(lines)


def _shown(data: bytes | None) -> str:
    return "-" if data is None else data.decode("utf-8", "backslashreplace")


def _json(data: bytes | None) -> object:
    """Return bytes as JSON: a text, or where they are none their base64."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def _json_headers(headers: ReadHeaders) -> list[list[object]]:
    return [[name, _json(value)] for name, value in headers]


def _cut(reason: str) -> str:
    return reason if len(reason) <= MAX_CELL else f"{reason[: MAX_CELL - 3]}..."


def _names(names: list[str]) -> str:
    r"""Return a line with the first name and the number of the others.

    >>> _names(["in/1.jsonl"]), _names(["in/1.jsonl", "in/2.jsonl"]), _names([])
    ("\nin 'in/1.jsonl'", "\nin 'in/1.jsonl' and 1 more", '')
    """
    least = "at least " if len(names) == MAX_NAMES else ""
    others = f" and {least}{len(names) - 1} more" if len(names) > 1 else ""
    return f"\nin {names[0]!r}{others}" if names else ""


def _second(millis: int) -> str:
    """Return a date, and below it a time: rich would take the room from the reason."""
    return at_millis(millis)[:19].replace(" ", "\n", 1)
