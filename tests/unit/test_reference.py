"""The pages of the reference list what the product has: settings, commands, events, metrics, topics
and exit codes, each with its default."""

from __future__ import annotations

import ast
import inspect
import re
import signal
from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields, is_dataclass
from typing import get_args

import pytest
import typer
from msgspec import structs
from pydantic_core import PydanticUndefined
from typer._click.core import Command, Parameter
from typer.core import TyperGroup

import meander
import meander.testing
from meander import (
    Checkpointing,
    DeadLetters,
    FileSink,
    FileSource,
    Flow,
    KafkaSink,
    KafkaSource,
    KeyedStream,
    Options,
    Retry,
    Stream,
)
from meander.app.cli.main import app
from meander.app.common.signals import Interrupted
from meander.app.config.settings import OWN
from meander.app.status.metrics import MetricsCollector
from meander.connectors.kafka.client import FIXED
from meander.connectors.topics.internal_topics import internal_topics
from meander.dataflow.interfaces import SourceOptions
from meander.dataflow.metrics.histogram import BOUNDS
from meander.schemas import control, status
from meander.schemas.errors import MeanderError, SetupError
from meander.schemas.struct import FrozenStruct
from meander.state.encoding.codec import PLAIN
from tests.support import api_signatures
from tests.support.doc_blocks import ROOT

Rows = list[list[str]]


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text()


def table(text: str, *head: str) -> Rows:
    """Return the cells of the rows of all tables with this head."""
    found, inside = Rows(), False
    for line in text.splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if cells == [*head]:
            inside = True
        elif not cells:
            inside = False
        elif inside and set(line) - set("|-"):
            found.append(cells)
    assert found, head
    return found


def quoted(cell: str) -> list[str]:
    """Return what stands between backticks.

    >>> quoted("`a`, `b` (s)")
    ['a', 'b']
    """
    return re.findall(r"`([^`]+)`", cell)


# -- errors


def sentences() -> str:
    """Return all texts of the product, one per line; `{}` stands for each value."""
    found, nodes = list[str](), list[ast.AST]()
    for folder in "app", "connectors", "dataflow", "schemas", "state":
        for file in (ROOT / folder).rglob("*.py"):
            nodes += ast.walk(ast.parse(file.read_text()))
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.append(node.value)
        elif isinstance(node, ast.JoinedStr):
            parts = (p.value if isinstance(p, ast.Constant) else "{}" for p in node.values)
            found.append("".join(map(str, parts)))
    return "\n".join(found)


def test_an_error_of_the_operations_page_is_one_of_the_product() -> None:
    texts = sentences()
    rows = table(page("operations.md"), "the sentence holds", "cause", "do")
    missing = [words for row in rows for words in quoted(row[0]) if words not in texts]
    assert not missing


# -- settings

BY_METHOD = object()
"""The default value of an option whose method gives it."""
SETTINGS = table(page("reference/settings.md"), "place", "setting", "unit", "default", "effect")
EMPTY = inspect.Parameter.empty


def shown(default: object, unit: str) -> str:
    """Return how the table shows a default value of a setting with this unit."""
    if default in (EMPTY, MISSING, PydanticUndefined):
        return "required"
    for value, word in (None, "none"), ((), "none"), ("", "empty"), (BY_METHOD, "its method"):
        if default == value:
            return word
    if isinstance(default, bool):
        return "on" if default else "off"
    if isinstance(default, str):
        return f'`"{default}"`'
    if isinstance(default, int) and unit == "bytes":
        scale, name = (30, "GiB") if default >= 1 << 30 else (20, "MiB")
        return f"{default >> scale} {name}"
    if isinstance(default, int | float):
        return f"{default:g}"
    if default is PLAIN:
        return "`PLAIN`"
    if isinstance(default, type):
        return f"`{default.__name__}`"
    assert is_dataclass(default) and not isinstance(default, type), default
    assert default == type(default)(), default
    return f"`{type(default).__name__}()`"


def defaults_of(kind: Callable[..., object]) -> dict[str, object]:
    """Return the arguments of a class with their default values."""
    if is_dataclass(kind):
        return {one.name: one.default for one in fields(kind)}
    return {name: one.default for name, one in inspect.signature(kind).parameters.items()}


def of_operators() -> dict[str, object]:
    """Return the options that the methods of streams share, with their default values. The default
    name of a step or a sink is that of its method."""
    found = dict[str, object]()
    methods = {**vars(Stream), **vars(KeyedStream)}
    for name, method in [*methods.items(), *vars(Stream).items()]:
        own = "map_async", "take"
        if name.startswith("_") or not inspect.isfunction(method) or name in own:
            continue
        for option in inspect.signature(method).parameters.values():
            if option.name == "name" and option.default == name:
                found["name"] = BY_METHOD
            elif option.kind is option.KEYWORD_ONLY:
                assert found.setdefault(option.name, option.default) == option.default
    return found


def of_map_async() -> dict[str, object]:
    """Return the options of the asynchronous map alone, with their default values."""
    options = defaults_of(Stream.map_async)
    return {name: options[name] for name in ("concurrency", "timeout", "order")}


def keywords_of(method: Callable[..., object]) -> dict[str, object]:
    """Return the keyword arguments of a method with their default values."""
    found = inspect.signature(method).parameters.values()
    return {one.name: one.default for one in found if one.kind is one.KEYWORD_ONLY}


KINDS = (
    Flow, Checkpointing, DeadLetters, Retry, KafkaSource, SourceOptions, KafkaSink, Options,
    FileSource, FileSink,
)  # fmt: skip
PLACES: dict[str, dict[str, object]] = {kind.__name__: defaults_of(kind) for kind in KINDS}
PLACES |= {"operator": of_operators(), "map_async": of_map_async()}
PLACES |= {"run": keywords_of(Flow.run), "take": keywords_of(Stream.take)}


@pytest.mark.parametrize("place", PLACES)
def test_each_setting_is_listed_with_its_default(place: str) -> None:
    listed = {quoted(row[1])[0]: (row[2], row[3]) for row in SETTINGS if quoted(row[0]) == [place]}
    if place == "operator":
        listed = {quoted(row[1])[0]: (row[2], row[3]) for row in SETTINGS if row[0] == place}
    wanted = PLACES[place]
    assert set(listed) == set(wanted)
    for name, (unit, default) in listed.items():
        assert default == shown(wanted[name], unit), name


def test_each_setting_has_a_unit_and_an_effect() -> None:
    assert [row for row in SETTINGS if len(row) != 5 or not all(row)] == []
    known = {*PLACES, "meander.toml", "environment"}
    assert {(quoted(row[0]) or [row[0]])[0] for row in SETTINGS} == known


def test_each_fixed_setting_of_librdkafka_is_listed_with_its_value() -> None:
    text = page("reference/settings.md")
    listed = {quoted(row[0])[0]: row[1] for row in table(text, "setting", "value", "reason")}
    assert listed == {name: str(value).lower() for name, value in FIXED.items()}
    assert all(f"`{name}`" in text for name in OWN)


# -- the command line

CLI = page("reference/cli.md")
HEAD = "argument or option", "default", "effect"
SHARED = {quoted(row[0])[0] for row in table(CLI, "option", "default", "effect")}


def commands(of: Command, path: str = "meander") -> Iterator[tuple[str, Command]]:
    """Yield each command that can be called alone, and its words."""
    if path != "meander" and (not isinstance(of, TyperGroup) or of.invoke_without_command):
        yield path, of
    if isinstance(of, TyperGroup):
        for name, one in of.commands.items():
            yield from commands(one, f"{path} {name}")


COMMANDS = dict(commands(typer.main.get_command(app)))


def names_of(one: Parameter) -> list[str]:
    if one.param_type_name == "argument":
        return [str(one.name).upper()]
    return [*one.opts, *one.secondary_opts]


def default_of(one: Parameter) -> str:
    """Return how the page shows the default value of an option."""
    if one.required:
        return "required"
    if "--data" in one.opts:
        return "the user's data folder"
    if one.default is None:
        said = re.search(r" Default: ([^.]*)\.$", getattr(one, "help", None) or "")
        return said[1] if said else "none"
    if isinstance(one.default, bool):
        return "on" if one.default else "off"
    return f"`{one.default}`" if isinstance(one.default, str) else f"{one.default:g}"


def section(words: str) -> str:
    (text,) = re.findall(rf"^## {words}\n(.*?)(?=^## |\Z)", CLI, re.DOTALL | re.MULTILINE)
    return str(text)


def test_each_command_has_a_section() -> None:
    assert re.findall(r"^## (meander .*)$", CLI, re.MULTILINE) == [*COMMANDS]


@pytest.mark.parametrize("words", COMMANDS)
def test_each_option_of_a_command_is_listed_with_its_default(words: str) -> None:
    text, options = section(words), COMMANDS[words].params
    own = [one for one in options if one.opts[0] not in SHARED]
    listed = {tuple(quoted(row[0])): row[1] for row in table(text, *HEAD)} if own else {}
    assert listed == {tuple(names_of(one)): default_of(one) for one in own}
    (also,) = re.findall(r"^Also: (.*)\.$", text, re.MULTILINE)
    assert quoted(also) == [one.opts[0] for one in options if one.opts[0] in SHARED]


def test_the_options_of_the_program_are_named() -> None:
    for one in typer.main.get_command(app).params:
        assert all(f"`{name}`" in CLI for name in names_of(one))


@pytest.mark.parametrize(
    ("name", "head"),
    [
        ("reference/cli.md", ("code", "meaning")),
        ("operations.md", ("code", "meaning", "supervisor")),
    ],
)
def test_the_exit_codes_are_those_of_the_product(name: str, head: tuple[str, ...]) -> None:
    listed = {int(row[0]) for row in table(page(name), *head)}
    ended = {Interrupted(number).exit_code for number in (signal.SIGINT, signal.SIGTERM)}
    assert listed == {0, MeanderError.exit_code, SetupError.exit_code} | ended


# -- commands and events

EVENTS = page("reference/events.md")
TYPES: tuple[type[FrozenStruct], ...] = get_args(status.Event)


def names_in(struct: type[FrozenStruct]) -> list[str]:
    return [one.encode_name for one in structs.fields(struct)]


def test_each_field_of_a_command_is_listed_with_its_default() -> None:
    listed = {
        (quoted(row[0])[0], quoted(row[1])[0]): row[2]
        for row in table(EVENTS, "`type`", "field", "default", "effect")
    }
    wanted = dict[tuple[str, str], str]()
    for kind in get_args(control.Command):
        (type_,) = get_args(kind.model_fields["type"].annotation)
        for name, one in kind.model_fields.items():
            if name not in {"meander", "type", "id"}:
                default = one.default
                true_or_false = str(default).lower() if isinstance(default, bool) else None
                wanted[type_, name] = true_or_false or shown(default, "")
    assert listed == wanted


def test_each_event_is_listed_with_its_fields() -> None:
    listed = {
        quoted(row[0])[0]: quoted(row[1])
        for row in table(EVENTS, "`type`", "fields", "meaning")
    }  # fmt: skip
    assert listed == {kind.__struct_config__.tag: names_in(kind) for kind in TYPES}


def explained(title: str) -> set[str]:
    """Return the fields that a section explains."""
    _, _, text = EVENTS.partition(f"## {title}\n")
    rows = table(text.partition("\n## ")[0], "field", "unit", "meaning")
    return {name for row in rows for name in quoted(row[0])}


def test_each_field_of_an_event_is_explained() -> None:
    others = {name for kind in TYPES if kind is not status.Heartbeat for name in names_in(kind)}
    assert explained("Fields of events") == others
    assert explained("Fields of a heartbeat") == {*names_in(status.Heartbeat)}


def parts(annotation: object) -> Iterator[type[FrozenStruct]]:
    """Yield the structs within an annotation."""
    if isinstance(annotation, type) and issubclass(annotation, FrozenStruct):
        yield annotation
    for one in get_args(annotation):
        yield from parts(one)


def test_each_entry_of_a_list_in_a_heartbeat_is_listed_with_its_fields() -> None:
    listed = {quoted(row[0])[0]: quoted(row[1]) for row in table(EVENTS, "entry of", "fields")}
    wanted = {
        one.name: names_in(struct)
        for one in structs.fields(status.Heartbeat)
        for struct in parts(one.type)
    }
    assert listed == wanted


# -- metrics, topics, names


def test_each_metric_is_listed_with_its_type_and_labels() -> None:
    rows = table(page("reference/metrics.md"), "metric", "type", "labels", "meaning")
    listed = {quoted(row[0])[0]: (row[1], quoted(row[2])) for row in rows}
    wanted = {
        one.name + ("_total" if one.type == "counter" else ""): (
            one.type,
            [*vars(one).get("_labelnames", ())],
        )
        for one in MetricsCollector().collect()
    }
    assert listed == wanted


def test_the_buckets_of_histograms_are_listed() -> None:
    text = page("reference/metrics.md")
    (millis, seconds) = re.findall(r"buckets (.*) ms, and (.*) s\.", text)[0]
    found = [float(one) / 1000 for one in re.findall(r"[\d.]+", millis)]
    assert (*found, *map(float, re.findall(r"[\d.]+", seconds))) == BOUNDS


def test_each_metric_with_an_alert_exists() -> None:
    names = {one.name for one in MetricsCollector().collect()}
    used = set(re.findall(r"\bmeander_\w+", page("operations.md")))
    assert used
    assert {re.sub(r"_(total|bucket|count|sum)$", "", name) for name in used} <= names


def lasting(ms: int) -> str:
    """Return a time as the table of topics shows it."""
    if ms == -1:
        return "for ever"
    return f"{ms // 86_400_000} days" if ms >= 2 * 86_400_000 else f"{ms // 3_600_000} h"


def test_each_internal_topic_is_listed_as_it_is_created() -> None:
    rows = table(page("operations.md"), "topic", "holds", "partitions", "cleanup", "retention")
    listed = {quoted(row[0])[0]: row[2:] for row in rows}
    wanted = {}
    for topic in internal_topics("", "FLOW"):
        least = topic.least
        kept = least.get("retention.ms", least.get("min.compaction.lag.ms"))
        assert kept is not None
        wanted[topic.name] = [
            str(topic.partitions),
            topic.exactly["cleanup.policy"],
            lasting(kept),
        ]
    assert listed == wanted


def test_each_public_name_is_on_the_page_of_the_api() -> None:
    text = page("reference/api.md")
    listed = [quoted(row[0])[0] for row in table(text, "name", "meaning", "file")]
    assert sorted(listed) == sorted([*meander.__all__, *meander.testing.__all__])
    shown_ = {one.rpartition(".")[2] for one in re.findall(r"^::: (.*)$", text, re.MULTILINE)}
    assert shown_ == set(listed)


@pytest.mark.parametrize("row", table(page("reference/api.md"), "name", "meaning", "file"))
def test_a_name_of_the_api_is_defined_where_the_page_says(row: list[str]) -> None:
    (name,), (file,) = quoted(row[0]), quoted(row[2])
    source = (ROOT / file).read_text()
    assert name == "columns" or re.search(rf"^(class|def) {name}\b", source, re.MULTILINE)


def test_each_signature_of_the_api_is_listed_as_it_is() -> None:
    listed = api_signatures.listed_in(page("reference/api.md"))
    assert listed == api_signatures.listed(), "run .venv/bin/python -m tests.support.api_signatures"


def test_a_missing_row_is_found() -> None:
    with pytest.raises(AssertionError):
        table("| a | b |\n|---|---|\n\n| 1 | 2 |\n", "a", "b")
    assert table("| a | b |\n|---|---|\n| 1 | 2 |\n", "a", "b") == [["1", "2"]]
