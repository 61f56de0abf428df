"""Commands on the control topic: JSON that a person can type, validated before it takes effect.

Guarantees that a `Migrate` names existing bins or keys, a `ChangeLogic` operators and their logic,
an `ApplyPlan` a plan, a `Rescale` a number of workers, and nothing else. Any other command is
rejected with one sentence that names the remedy. A record without the marker is no command
(`is_command`). Texts and quotations are bounded, so an answer fits into a record. The published
schemas are `<type>.schema.json`, with the type of each command. The coordinator checks the
conditions that depend on the past of a flow: repeated ids, closed times and active workers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
    ValidationError,
)
from pydantic.config import JsonDict
from pydantic_core import from_json

from meander.schemas.execution_plan import MAX_NAME, NewLogic, PlanDocument

MAX_COMMAND = 512 << 10
"""The most bytes of a command: enough to name each bin of the greatest bin count."""

MAX_ID = MAX_NAME
"""The most characters of an id. Each event of its command and heartbeats repeat it."""

MAX_REASON = 1000
"""The most characters of the reason of a command."""

MAX_KEY = 64 << 10
"""The most characters of a text key. A longer one would not fit beside its state in a move."""

MAX_WORKERS = 1 << 16
"""More workers than any flow will have."""

MAX_QUOTATION = 60
"""The most characters of a quotation in a rejection."""

PlainKey = (
    Annotated[StrictStr, Field(max_length=MAX_KEY)] | StrictInt | StrictFloat | StrictBool | None
)
"""A key that JSON can express; commands name other keys by their bins."""

MAX_MILLIS = (1 << 43) - 1
"""The last millisecond that a logical time can hold (in the year 2248)."""

MARKER = "meander"
"""The field that makes a record of the control topic a command. No other record has it by
chance."""

Marker = Annotated[
    Literal["command"], Field(description="The marker that makes the record a command.")
]

_CHOICE: list[JsonValue] = [
    {"required": ["bins"], "properties": {"bins": {"not": {"type": "null"}}}},
    {
        "required": ["keys", "whole_bins"],
        "properties": {"keys": {"not": {"type": "null"}}, "whole_bins": {"const": True}},
    },
]


def _require_marker(schema: JsonDict) -> None:
    """Require the marker in a written command, though a parsed command always has it."""
    required = schema["required"]
    assert isinstance(required, list)
    schema["required"] = [MARKER, *required]


def _require_choice(schema: JsonDict) -> None:
    _require_marker(schema)
    schema["oneOf"] = _CHOICE


class CommandError(Exception):
    """An error that rejects a command. Its message names the remedy."""

    def __init__(self, reason: str, command: str | None = None) -> None:
        self.command = command
        """The id of an invalid command, as far as it is readable, cut to its greatest length."""
        super().__init__(reason)


Id = Annotated[
    str,
    Field(min_length=1, max_length=MAX_ID, description="An id that no earlier command has."),
]


Savepoint = Annotated[
    Annotated[str, Field(max_length=MAX_ID, pattern=r"^[A-Za-z_][A-Za-z0-9._-]*$")] | None,
    Field(description="The name of the savepoint, which stays until a user drops it."),
]


ChangeTime = Annotated[
    int | None,
    Field(
        ge=0,
        le=MAX_MILLIS,
        description="The time of the change, milliseconds since 1970; null: at once.",
    ),
]


class _Command(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", json_schema_extra=_require_marker, strict=True
    )

    meander: Marker = "command"


class Migrate(_Command):
    """Move bins of keys to a worker at a logical time, while the flow runs."""

    model_config = ConfigDict(json_schema_extra=_require_choice)

    type: Literal["migrate"]
    id: Id
    worker: Annotated[int, Field(ge=0, lt=MAX_WORKERS, description="The new owner of the bins.")]
    bins: Annotated[
        Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)] | Literal["all"] | None,
        Field(description="The bins to move, or all of them."),
    ] = None
    keys: Annotated[
        Annotated[list[PlainKey], Field(min_length=1)] | None,
        Field(description="Keys whose bins move."),
    ] = None
    whole_bins: Annotated[
        bool, Field(description="With keys: confirms that all keys of their bins move.")
    ] = False
    time: Annotated[
        int | None,
        Field(
            ge=0,
            le=MAX_MILLIS,
            description="The time of the move, milliseconds since 1970; null: at once.",
        ),
    ] = None
    strategy: Annotated[
        Literal["batched", "fluid", "all-at-once"],
        Field(
            description="batched: in rounds, where no worker takes part in two moves; fluid: bin"
            " after bin; all-at-once: all bins at one time."
        ),
    ] = "batched"
    precopy: Annotated[
        bool,
        Field(
            description="Whether a pre-copy writes the bins ahead of their move. A given time does"
            " not wait for it."
        ),
    ] = True
    overlap: Annotated[
        Literal["queue", "reject"],
        Field(description="Whether to wait where another command moves some of the bins."),
    ] = "queue"
    order: Annotated[
        Literal["as-listed", "hottest", "coldest"],
        Field(description="The order of the bins: as listed, or by their recent records."),
    ] = "as-listed"
    operator: Annotated[
        str | None,
        Field(
            min_length=1,
            max_length=MAX_ID,
            description="An operator whose bins move alone; null: all other operators.",
        ),
    ] = None
    dry_run: Annotated[
        bool,
        Field(description="Report the plan only: no bin moves, and the id remains unused."),
    ] = False


class Abort(_Command):
    """End a command that moves bins: running moves complete, and the other bins stay."""

    type: Literal["abort"]
    id: Id
    command: Annotated[
        str, Field(min_length=1, max_length=MAX_ID, description="The id of the command to end.")
    ]


class ChangeLogic(_Command):
    """Replace the logic of operators at one logical time, while the flow runs."""

    type: Literal["change_logic"]
    id: Id
    operators: Annotated[
        dict[Annotated[str, Field(min_length=1, max_length=MAX_ID)], NewLogic],
        Field(min_length=1, description="The new logic of each operator, by its name."),
    ]
    time: ChangeTime = None


class ApplyPlan(_Command):
    """Bring another execution plan into force at one logical time, while the flow runs."""

    type: Literal["apply_plan"]
    id: Id
    plan: PlanDocument
    time: ChangeTime = None
    by: Annotated[
        str, Field(max_length=MAX_ID, description="The user or the policy that asks for it.")
    ] = ""
    why: Annotated[str, Field(max_length=MAX_REASON, description="The reason.")] = ""
    seconds: Annotated[
        float | None,
        Field(gt=0, description="The time limit of the preparation; null: ten minutes."),
    ] = None
    dry_run: Annotated[
        bool, Field(description="Report the plan and its operations only; nothing changes.")
    ] = False


class Rescale(_Command):
    """Add workers to the running flow, or remove the workers that joined last."""

    type: Literal["rescale"]
    id: Id
    workers: Annotated[int, Field(ge=1, lt=MAX_WORKERS, description="The new number of workers.")]


class RequestCheckpoint(_Command):
    """Take a checkpoint of the running flow, from which its next run restarts."""

    type: Literal["checkpoint"]
    id: Id
    policy: Annotated[
        Literal["unaligned", "unaligned_max_inflight", "aligned"] | None,
        Field(description="The policy for in-flight records; null: the policy of the flow."),
    ] = None
    savepoint: Savepoint = None


class Stop(_Command):
    """Stop the running flow as Ctrl-C does, after its savepoint if one is named."""

    type: Literal["stop"]
    id: Id
    savepoint: Savepoint = None


Command = Migrate | ChangeLogic | ApplyPlan | Rescale | Abort | RequestCheckpoint | Stop


_TYPES: Mapping[object, type[Command]] = {
    "rescale": Rescale, "abort": Abort, "checkpoint": RequestCheckpoint, "stop": Stop,
    "change_logic": ChangeLogic, "apply_plan": ApplyPlan,
}  # fmt: skip


def is_command(data: bytes | None) -> bool:
    """Return whether a record of the control topic claims to be a command. It then has the marker,
    or contains the marker's name in invalid JSON.

    >>> is_command(b'{"meander":"command","type":"stop"}'), is_command(b'{"type":"stop"}')
    (True, False)
    """
    if data is None or f'"{MARKER}"'.encode() not in data:
        return False
    try:
        fields = from_json(data)
    except ValueError:
        return True
    return isinstance(fields, dict) and MARKER in fields


def parse_command(data: bytes | None, bins: int) -> Command:
    """Return the command of a record on the control topic, for a flow with `bins` bins.

    Raise CommandError.

    >>> parse_command(b'{"type":"rescale","id":"r1","workers":3}', 256)
    Rescale(meander='command', type='rescale', id='r1', workers=3)
    >>> parse_command(b'{"type":"migrate","id":"m1","bins":[256],"worker":1}', 256)
    Traceback (most recent call last):
    meander.schemas.control.CommandError: command 'm1': there is no bin 256; name bins from 0 to ...
    """
    fields = _object(data)
    name = fields.get("id")
    command = _shorten(name, MAX_ID) if isinstance(name, str) and name else None
    kind = _TYPES.get(fields.get("type"), Migrate)
    try:
        parsed = kind.model_validate(fields)
    except ValidationError as error:
        raise _translate(kind, command, fields, error) from None
    if isinstance(parsed, Migrate):
        _check(parsed, bins)
    return parsed


def _invalid(command: str | None, cause: str, remedy: str) -> CommandError:
    subject = "command" if command is None else f"command {command!r}"
    return CommandError(f"{subject}: {cause}; {remedy}.", command)


def _object(data: bytes | None) -> Mapping[str, object]:
    example = (
        'write one JSON object such as {"meander":"command","type":"migrate","id":"m1","bins":[0],'
        '"worker":1}'
    )
    if not data:
        raise _invalid(None, "the record is empty", example)
    if len(data) > MAX_COMMAND:
        cause = f"the record takes {len(data):,} bytes, and a command at most {MAX_COMMAND:,}"
        raise _invalid(None, cause, 'name fewer bins or keys, or "bins": "all"')
    try:
        value = from_json(data, allow_inf_nan=False)
    except ValueError as error:
        raise _invalid(None, f"it is not JSON ({error})", example) from None
    if not isinstance(value, dict):
        raise _invalid(None, "it is not a JSON object", example)
    return value


_REMEDIES = {
    MARKER: 'write "meander": "command"',
    "type": "the known types are 'migrate', 'change_logic', 'apply_plan', 'rescale', 'abort',"
    " 'checkpoint' and 'stop'",
    "plan": 'give sections such as {"workers": {"0": {}, "1": {}}, "bins": {"0": "0-127", "1":'
    ' "128-255"}}',
    "by": f"give a text of at most {MAX_ID} characters",
    "why": f"give a text of at most {MAX_REASON:,} characters",
    "seconds": "give a number of seconds above 0, or null",
    "operators": 'give the new logic of each operator, such as {"alert": {"parameters": {"limit":'
    " 5}}}",
    "id": f"give an id that is a text of at most {MAX_ID} characters and was never used before",
    "worker": "give a worker's number, such as 1",
    "workers": "give the new number of workers, such as 3",
    "bins": 'give a list of bins\' numbers such as [0, 1], or "all"',
    "keys": f"give a list of texts of at most {MAX_KEY:,} characters, numbers, booleans or nulls,"
    ' such as ["N14228"]',
    "whole_bins": "give true or false",
    "time": f"give milliseconds since 1970 from 0 to {MAX_MILLIS}, or null for as soon as possible",
    "strategy": "give 'batched', 'fluid' or 'all-at-once'",
    "precopy": "give true or false",
    "overlap": "give 'queue' or 'reject'",
    "order": "give 'as-listed', 'hottest' or 'coldest'",
    "operator": "give the name of an operator that moves alone, or null",
    "dry_run": "give true or false",
    "command": "give the id of the command to end",
    "savepoint": f"give a name of at most {MAX_ID} letters, digits, '.', '_' and '-' that starts"
    " with a letter",
}


def _translate(
    kind: type[Command], command: str | None, fields: Mapping[str, object], error: ValidationError
) -> CommandError:
    first = min(error.errors(), key=lambda found: found["type"] != "extra_forbidden")
    name = str(first["loc"][0])
    if first["type"] == "extra_forbidden":
        return _invalid(command, f"it has an unknown field {_quote(name)}", _known(kind))
    if first["type"] == "missing":
        return _invalid(command, f"it has no {name!r}", _REMEDIES[name])
    return _invalid(command, f"{name!r} cannot be {_quote(fields[name])}", _REMEDIES[name])


def _known(kind: type[Command]) -> str:
    return "the known fields are " + ", ".join(kind.model_fields)


def _quote(value: object) -> str:
    return _shorten(repr(value), MAX_QUOTATION)


def _shorten(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 3] + "..."


def _check(migrate: Migrate, bins: int) -> None:
    if migrate.bins is None and migrate.keys is None:
        raise _invalid(migrate.id, "it has neither 'bins' nor 'keys'", _REMEDIES["bins"])
    if migrate.bins is not None and migrate.keys is not None:
        raise _invalid(migrate.id, "it has both 'bins' and 'keys'", "give one of them")
    if migrate.keys is not None and not migrate.whole_bins:
        raise _invalid(
            migrate.id,
            "all keys of a bin move together, so more would move than the keys named",
            'confirm that with "whole_bins": true, or name bins',
        )
    if isinstance(migrate.bins, list) and max(migrate.bins) >= bins:
        raise _invalid(
            migrate.id,
            f"there is no bin {_quote(max(migrate.bins))}",
            f"name bins from 0 to {bins - 1}",
        )
