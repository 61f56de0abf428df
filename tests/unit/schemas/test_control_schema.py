"""Commands: whatever is wrong with one is said in a sentence, and the schema says the same."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from meander import schemas
from meander.schemas.control import (
    MAX_COMMAND,
    MAX_ID,
    MAX_WORKERS,
    Abort,
    ApplyPlan,
    ChangeLogic,
    Command,
    CommandError,
    Migrate,
    RequestCheckpoint,
    Rescale,
    Stop,
    is_command,
    parse_command,
)
from meander.schemas.status import CommandRejected
from meander.state.keys.bins import MAX_BITS

FOLDER = Path(str(schemas.__file__)).parent
PUBLISHED, RESCALE = FOLDER / "migrate.schema.json", FOLDER / "rescale.schema.json"
ABORT, CHECKPOINT = FOLDER / "abort.schema.json", FOLDER / "checkpoint.schema.json"
STOP, CHANGE_LOGIC = FOLDER / "stop.schema.json", FOLDER / "change_logic.schema.json"
APPLY_PLAN = FOLDER / "apply_plan.schema.json"
BINS = 256


def command(**fields: object) -> dict[str, object]:
    mark = {"meander": "command", "type": "migrate"}
    return {**mark, "id": "m1", "worker": 1, "bins": [0], **fields}


def without(name: str) -> dict[str, object]:
    return {field: value for field, value in command().items() if field != name}


def parse_any(fields: object) -> Command:
    return parse_command(json.dumps(fields).encode(), BINS)


def parse(fields: object) -> Migrate:
    parsed = parse_any(fields)
    assert isinstance(parsed, Migrate)
    return parsed


def test_the_published_schema_is_that_of_the_code() -> None:
    assert json.loads(PUBLISHED.read_text()) == Migrate.model_json_schema()
    assert json.loads(RESCALE.read_text()) == Rescale.model_json_schema()
    assert json.loads(ABORT.read_text()) == Abort.model_json_schema()
    assert json.loads(CHECKPOINT.read_text()) == RequestCheckpoint.model_json_schema()
    assert json.loads(STOP.read_text()) == Stop.model_json_schema()
    assert json.loads(CHANGE_LOGIC.read_text()) == ChangeLogic.model_json_schema()
    assert json.loads(APPLY_PLAN.read_text()) == ApplyPlan.model_json_schema()


GOOD = {
    "bins": command(),
    "all bins": command(bins="all"),
    "the last bin": command(bins=[255]),
    "keys": without("bins") | {"keys": ["N14228", 7, 1.5, True, None], "whole_bins": True},
    "a time": command(time=1_357_034_400_000),
    "no time, spelled out": command(time=None),
    "all-at-once": command(strategy="all-at-once"),
    "an operator": command(operator="totals"),
    "no operator, spelled out": command(operator=None),
    "the longest id": command(id="x" * MAX_ID),
}


@pytest.mark.parametrize("fields", GOOD.values(), ids=GOOD)
def test_good_commands_are_taken_by_code_and_schema(fields: dict[str, object]) -> None:
    jsonschema.validate(fields, json.loads(PUBLISHED.read_text()))
    parsed = parse(fields)
    assert parsed.model_dump(include=set(fields)) == fields
    assert [type(key) for key in parsed.keys or []] == [type(k) for k in fields.get("keys", [])]  # type: ignore[attr-defined]


def test_a_command_without_time_and_strategy_is_batched_prepared_and_at_once() -> None:
    parsed = parse(command())
    assert (parsed.time, parsed.strategy, parsed.precopy) == (None, "batched", True)


BAD: dict[str, tuple[dict[str, object], str]] = {
    "another marker": (command(meander="order"), "'meander' cannot be 'order'; write \"meander\""),
    "unknown type": (command(type="explode"), "'type' cannot be 'explode'; the known types are"),
    "no type": (without("type"), "it has no 'type'; the known types are 'migrate', '"),
    "no id": (without("id"), "it has no 'id'; give an id"),
    "empty id": (command(id=""), "'id' cannot be ''; give an id"),
    "a long id": (
        command(id="x" * 201),
        "'id' cannot be 'xxxxx",
    ),
    "a long key": (
        without("bins") | {"keys": ["k" * 65_537], "whole_bins": True},
        "give a list of texts of at most 65,536 characters",
    ),
    "no worker": (without("worker"), "it has no 'worker'; give a worker's number"),
    "worker as text": (command(worker="1"), "'worker' cannot be '1'; give a worker's number"),
    "negative worker": (command(worker=-1), "'worker' cannot be -1"),
    "bins as text": (command(bins="some"), "'bins' cannot be 'some'; give a list of bins"),
    "no bins in the list": (command(bins=[]), "'bins' cannot be []; give a list of bins"),
    "a negative bin": (command(bins=[-1]), "'bins' cannot be [-1]"),
    "neither bins nor keys": (without("bins"), "it has neither 'bins' nor 'keys'"),
    "bins and keys": (command(keys=["a"], whole_bins=True), "it has both 'bins' and 'keys'"),
    "keys alone": (without("bins") | {"keys": ["a"]}, 'confirm that with "whole_bins": true'),
    "a list as key": (
        without("bins") | {"keys": [["a"]], "whole_bins": True},
        "'keys' cannot be [['a']]",
    ),
    "a time before 1970": (command(time=-1), "'time' cannot be -1; give milliseconds since 1970"),
    "a time as text": (command(time="noon"), "'time' cannot be 'noon'"),
    "unknown strategy": (command(strategy="slow"), "give 'batched', 'fluid' or 'all-at-once'"),
    "an operator without a name": (command(operator=""), "give the name of an operator that moves"),
    "a long operator": (command(operator="o" * 201), "'operator' cannot be 'ooooo"),
    "unknown field": (
        command(bin=3),
        "it has an unknown field 'bin'; the known fields are meander",
    ),
}


@pytest.mark.parametrize(("fields", "sentence"), BAD.values(), ids=BAD)
def test_bad_commands_are_refused_by_code_and_schema(
    fields: dict[str, object], sentence: str
) -> None:
    with pytest.raises(CommandError) as refusal:
        parse(fields)
    assert sentence in str(refusal.value)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(fields, json.loads(PUBLISHED.read_text()))


BAD_RESCALES: dict[str, tuple[dict[str, object], str]] = {
    "no number": ({}, "it has no 'workers'; give the new number of workers, such as 3"),
    "nobody": ({"workers": 0}, "'workers' cannot be 0; give the new number"),
    "a text": ({"workers": "3"}, "'workers' cannot be '3'; give the new number"),
    "too many": ({"workers": MAX_WORKERS}, "'workers' cannot be 65536; give the new number"),
    "bins": ({"workers": 3, "bins": [1]}, "unknown field 'bins'; the known fields are meander, t"),
    "no id": ({"workers": 3, "id": None}, "'id' cannot be None; give an id"),
}


@pytest.mark.parametrize(("fields", "sentence"), BAD_RESCALES.values(), ids=BAD_RESCALES)
def test_bad_rescales_are_refused_by_code_and_schema(
    fields: dict[str, object], sentence: str
) -> None:
    asked = {"meander": "command", "type": "rescale", "id": "r1"} | fields
    with pytest.raises(CommandError) as refusal:
        parse_any(asked)
    assert sentence in str(refusal.value)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(asked, json.loads(RESCALE.read_text()))


def test_a_rescale_names_how_many_workers_there_are_to_be() -> None:
    fields = {"meander": "command", "type": "rescale", "id": "r1", "workers": 3}
    jsonschema.validate(fields, json.loads(RESCALE.read_text()))
    assert parse_any(fields) == Rescale(type="rescale", id="r1", workers=3)


def change(**fields: object) -> dict[str, object]:
    mark = {"meander": "command", "type": "change_logic"}
    return {**mark, "id": "c1", "operators": {"above": {"logic": "Above"}}, **fields}


GOOD_CHANGES = {
    "a class": change(),
    "parameters": change(operators={"above": {"parameters": {"limit": 5, "words": ["a", None]}}}),
    "nulls, spelled out": change(time=None, operators={"above": {"logic": None}}),
    "nothing new": change(operators={"above": {}}),
    "a time": change(time=1_357_034_400_000),
    "several operators": change(operators={"above": {}, "total": {"logic": "rules:Total"}}),
    "the longest names": change(operators={"o" * MAX_ID: {"logic": "l" * MAX_ID}}),
}


@pytest.mark.parametrize("fields", GOOD_CHANGES.values(), ids=GOOD_CHANGES)
def test_good_changes_of_logic_are_taken_by_code_and_schema(fields: dict[str, object]) -> None:
    jsonschema.validate(fields, json.loads(CHANGE_LOGIC.read_text()))
    parsed = parse_any(fields)
    assert isinstance(parsed, ChangeLogic)
    assert parsed.model_dump(exclude_unset=True) == fields


OPERATORS = "give the new logic of each operator, such as"
BAD_CHANGES: dict[str, tuple[dict[str, object], str]] = {
    "no id": (change(id=None), "'id' cannot be None; give an id"),
    "no operator": (change(operators={}), f"'operators' cannot be {{}}; {OPERATORS}"),
    "operators as a list": (
        change(operators=["above"]),
        f"'operators' cannot be ['above']; {OPERATORS}",
    ),
    "an operator without a name": (change(operators={"": {}}), OPERATORS),
    "a long operator": (change(operators={"o" * 201: {}}), OPERATORS),
    "null for an operator": (change(operators={"above": None}), OPERATORS),
    "a class without a name": (change(operators={"above": {"logic": ""}}), OPERATORS),
    "a long class": (change(operators={"above": {"logic": "l" * 201}}), OPERATORS),
    "a number for a class": (change(operators={"above": {"logic": 5}}), OPERATORS),
    "parameters as a list": (change(operators={"above": {"parameters": [1]}}), OPERATORS),
    "an unknown part": (change(operators={"above": {"limit": 5}}), "it has an unknown field"),
    "an unknown field": (change(logic="Above"), "it has an unknown field 'logic'"),
    "a time before 1970": (change(time=-1), "'time' cannot be -1; give milliseconds since 1970"),
    "a time as text": (change(time="noon"), "'time' cannot be 'noon'"),
}


@pytest.mark.parametrize(("fields", "sentence"), BAD_CHANGES.values(), ids=BAD_CHANGES)
def test_bad_changes_of_logic_are_refused_by_code_and_schema(
    fields: dict[str, object], sentence: str
) -> None:
    with pytest.raises(CommandError) as refusal:
        parse_any(fields)
    assert sentence in str(refusal.value)
    assert len(str(refusal.value)) < 500
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(fields, json.loads(CHANGE_LOGIC.read_text()))


@pytest.mark.parametrize(
    ("data", "is_meant"),
    [
        (b'{"meander": "command", "type": "explode"}', True),
        (b'{"meander": "command", "type": ', True),
        (b'{"type": "rescale", "id": "order-7", "workers": 1}', False),
        (b'{"type": "stop", "id": "s", "by": "meander"}', False),
        (b'{"type": "stop", "id": "s", "in": {"meander": 1}}', False),
        (b'["meander"]', False),
        (b"no JSON", False),
        (b"", False),
        (None, False),
    ],
)
def test_only_a_record_that_bears_the_marker_is_meant(data: bytes | None, is_meant: bool) -> None:
    assert is_command(data) is is_meant


def test_a_bin_out_of_range_is_refused_with_the_range() -> None:
    with pytest.raises(CommandError, match="there is no bin 256; name bins from 0 to 255"):
        parse(command(bins=[0, 256]))


@pytest.mark.parametrize("data", [None, b"", b"migrate", b"[1]", b'{"id": NaN}', b"\xff\xfe"])
def test_what_is_no_json_object_is_refused_with_an_example(data: bytes | None) -> None:
    with pytest.raises(CommandError, match='write one JSON object such as {"meander":"command"'):
        parse_command(data, BINS)


def test_a_rejection_names_the_command_where_its_id_could_be_read() -> None:
    with pytest.raises(CommandError) as named:
        parse(command(worker="x"))
    with pytest.raises(CommandError) as unnamed:
        parse(command(id=5))
    assert (named.value.command, unnamed.value.command) == ("m1", None)


LONG = "x" * 400_000
HUGE = {
    "its id": command(id=LONG),
    "its id, and a wrong worker": command(id=LONG, worker=9),
    "an unknown field": command(**{LONG: 1}),
    "a wrong value": command(strategy=LONG),
    "a worker of many digits": command(worker=10**4000),
    "a bin of many digits": command(bins=[10**4000]),
    "a key": without("bins") | {"keys": [LONG], "whole_bins": True},
    "all of it": command(keys=[LONG, LONG, LONG]),
}


@pytest.mark.parametrize("fields", HUGE.values(), ids=HUGE)
def test_the_answer_to_a_command_is_small_however_large_the_command_is(
    fields: dict[str, object],
) -> None:
    with pytest.raises(CommandError) as refusal:
        parse(fields)
    name = refusal.value.command or "offset 7"
    said = CommandRejected(id=name, offset=7, reason=str(refusal.value))
    assert len(said.to_bytes()) < 1000


def test_a_record_that_is_too_large_is_refused_unread() -> None:
    spaces = json.dumps(command()).encode().ljust(MAX_COMMAND)
    assert parse_command(spaces, BINS) == parse(command())
    with pytest.raises(
        CommandError, match="takes 524,289 bytes, and a command at most 524,288; name"
    ):
        parse_command(spaces + b" ", BINS)


def test_a_command_may_name_each_of_the_most_bins() -> None:
    count = 1 << MAX_BITS
    every = command(bins=list(range(count)))
    parsed = parse_command(json.dumps(every).encode(), count)
    assert isinstance(parsed, Migrate)
    assert len(parsed.bins or ()) == count
