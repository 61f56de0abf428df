"""Every public constructor refuses an option of another type, or out of its range, at once.

The error names the object and the option, and has a remedy, so a wrong definition never reaches a
worker.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import meander
from meander import (
    Checkpointing,
    Context,
    DeadLetters,
    DriftTrigger,
    DS2Autoscaler,
    FileSink,
    FileSource,
    Flow,
    KafkaSink,
    KafkaSource,
    Options,
    PacedMigration,
    Policy,
    Registry,
    Resources,
    Retry,
    SetupError,
    SkewBalancer,
    SourceOptions,
    ThresholdAutoscaler,
    count,
    csv,
    field,
    flow_control,
    header,
    hopping,
    pattern,
    session,
    sliding,
    tumbling,
)

Made = Callable[..., object]
CONSTRUCTORS: dict[Made, dict[str, Any]] = {
    Checkpointing: {},
    DS2Autoscaler: {},
    DeadLetters: {"limit": 1},
    DriftTrigger: {"operator": "a", "parameter": "b", "target": 1.0},
    FileSink: {"folder": "a"},
    FileSource: {"paths": "a"},
    Flow: {"name": "f"},
    KafkaSink: {"topic": "a"},
    KafkaSource: {"topic": "a"},
    Options: {"kafka": {}},
    PacedMigration: {"inner": Policy()},
    Registry: {"url": "http://a"},
    Resources: {},
    Retry: {},
    SkewBalancer: {},
    SourceOptions: {},
    ThresholdAutoscaler: {},
    count: {"size": 1},
    csv: {"columns": ["a"]},
    field: {"name": "a"},
    header: {"name": "a"},
    hopping: {"size": 60, "every": 60},
    pattern: {"text": "a->b"},
    session: {"gap": 60},
    sliding: {"size": 60},
    tumbling: {"size": 60},
}
"""Each constructor whose options a user writes, with what it needs."""
OTHERS = {
    # What the engine gives to functions and policies of a user.
    "ArrangedCollection", "BinLoad", "Collection", "Context", "ExecutionPlan", "Groups",
    "InProcessResult", "KeyedStream", "Matches", "Metrics", "ObjectColumn", "OperatorLoad",
    "OperatorServices", "PartitionLoad", "Pattern", "ProcessedStream", "Record", "Stream", "Table",
    "TableChange", "Window", "WindowContext", "WindowResult", "WindowResults", "WindowTop",
    "WindowedStream", "WorkerLoad",
    # Base classes of a user's own classes, and the records of these.
    "ChangeableLogic", "PartitionReader", "Policy", "Sink", "SinkPart", "SinkRecord", "Source",
    "SourceRecord", "UnreadableRecord",
    # No constructors with options.
    "MeanderError", "SetupError", "bootstrap", "columns", "difference", "flow_control",
    "nondeterministic", "resized", "typed",
}  # fmt: skip
WRONG: dict[str, list[object]] = {
    "bool": ["x", 1, None], "int": ["x", 1.5, True, float("nan")],
    "float": ["x", True, float("nan")],
    "str": [5, None],
}  # fmt: skip
"""Values of other types, by the annotation of an option."""
OUT_OF_RANGE = [
    (Checkpointing, "interval", 0), (Checkpointing, "max_inflight", -1),
    (Checkpointing, "min_pause", -1), (Checkpointing, "timeout", 0),
    (Checkpointing, "tolerable_failures", -1), (Checkpointing, "retained", 0),
    (Checkpointing, "policy", "eager"), (DeadLetters, "limit", -1), (DeadLetters, "per", 0),
    (DS2Autoscaler, "min_workers", 0), (FileSink, "columns", 5), (FileSink, "folder", 5),
    (FileSink, "delimiter", ""), (FileSource, "paths", 5), (FileSource, "columns", 5),
    (FileSource, "options", 5), (FileSource, "delimiter", ";;"),
    (Flow, "bins", 17), (Flow, "bins", -1), (Flow, "max_inflight", 0), (Flow, "state_memory", 0),
    (Flow, "migration_latency", 0), (Flow, "snapshot_interval", 0), (Flow, "control_lead", -1),
    (Flow, "transaction_interval", 0), (Flow, "checkpoints", 60), (Flow, "dead_letters", 5),
    (Flow, "delivery", "twice"), (Flow, "policies", 5), (Flow, "types", 5),
    (KafkaSink, "time", "later"), (KafkaSink, "topic", 5), (KafkaSource, "idle", "leap"),
    (KafkaSource, "options", 5), (KafkaSource, "topic", 5), (KafkaSource, "start", "noon"),
    (Options, "workers", -1), (Options, "metrics_port", 70_000), (Options, "on_stop", "restart"),
    (Options, "restart_attempts", -1), (Options, "restart_backoff", -1),
    (PacedMigration, "inner", 5), (Registry, "subjects", "all"), (Registry, "settings", 5),
    (Resources, "cores", 0), (Resources, "memory", -1), (Retry, "times", 0), (Retry, "wait", -1),
    (Retry, "wait", 3601), (Retry, "then", "stop"), (SourceOptions, "advance_after", 0),
    (SourceOptions, "max_skew", -1), (count, "size", 0), (csv, "delimiter", ";;"),
    (hopping, "every", 0), (session, "gap", 0), (session, "longest", 0), (sliding, "size", 0),
    (tumbling, "size", 0), (tumbling, "late", -1), (tumbling, "offset", float("inf")),
]  # fmt: skip


def of_another_type() -> Iterator[tuple[Made, str, object]]:
    for constructor in CONSTRUCTORS:
        for option in inspect.signature(constructor).parameters.values():
            for value in WRONG.get(str(option.annotation).removesuffix(" | None"), ()):
                if value is not None or "None" not in str(option.annotation):
                    yield constructor, option.name, value


def named(value: object) -> str:
    return getattr(value, "__name__", repr(value))


@pytest.mark.parametrize(
    ("constructor", "option", "value"), [*of_another_type(), *OUT_OF_RANGE], ids=named
)
def test_a_wrong_option_is_refused_where_it_is_given(
    constructor: Made, option: str, value: object
) -> None:
    with pytest.raises(SetupError) as refused:
        constructor(**{**CONSTRUCTORS[constructor], option: value})
    assert option in str(refused.value) or f"{value!r}" in str(refused.value)
    assert refused.value.remedy


def test_every_public_name_has_its_options_checked_or_none() -> None:
    checked = {named(constructor) for constructor in CONSTRUCTORS}
    assert checked.isdisjoint(OTHERS)
    assert checked | OTHERS == {*meander.__all__}


def test_the_options_of_a_part_under_flow_control_are_checked() -> None:
    stream = Flow("f").source(KafkaSource("a"))
    wrong: list[Any] = [{"in_flight": 0}, {"in_flight": "x"}, {"batch": 0}, {"batch": "x"}]
    for options in wrong:
        with pytest.raises(SetupError), flow_control(stream, **options):
            pass


@pytest.mark.parametrize("seconds", ["x", True, -1, float("nan"), float("inf"), None])
def test_an_alarm_is_due_in_a_number_of_seconds(seconds: Any) -> None:
    context = Context(b"", 0, ["alarm"], [])
    with pytest.raises(ValueError, match="an alarm is due in 0 to .* seconds"):
        context.alarm(seconds)
