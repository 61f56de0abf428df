"""Stateful dataflow on Kafka and Spark whose running plan changes without a stop.

What a flow needs is imported from here, and what its tests need from `meander.testing`. Each name
is loaded when it is first asked for.

>>> from meander import Flow, KafkaSink, KafkaSource
>>> flow = Flow("words")
>>> words = flow.source(KafkaSource("words", value="str")).key_by(lambda word: word)
>>> words.fold("count", int, lambda n, _: (n + 1, n + 1)).sink(KafkaSink("counts"))
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from meander.app.bootstrap.bootstrap import bootstrap
    from meander.app.config.options import Options
    from meander.connectors.custom.records import (
        PartitionReader,
        SinkRecord,
        SourceRecord,
        UnreadableRecord,
    )
    from meander.connectors.custom.sink import Sink, SinkPart
    from meander.connectors.custom.source import Source
    from meander.connectors.files.sink import FileSink
    from meander.connectors.files.source import FileSource
    from meander.connectors.kafka.formats import field, header
    from meander.connectors.kafka.registry.registry import Registry
    from meander.connectors.kafka.sink.sink import KafkaSink
    from meander.connectors.kafka.source.source import KafkaSource
    from meander.connectors.kafka.typed import csv, typed
    from meander.dataflow.api.checkpointing import Checkpointing
    from meander.dataflow.api.collection import ArrangedCollection, Collection
    from meander.dataflow.api.dead_letters import DeadLetters
    from meander.dataflow.api.determinism import nondeterministic
    from meander.dataflow.api.flow import Flow
    from meander.dataflow.api.in_process import InProcessResult
    from meander.dataflow.api.stream import KeyedStream, ProcessedStream, Stream
    from meander.dataflow.api.table import Table
    from meander.dataflow.api.windowed import WindowedStream, WindowResults
    from meander.dataflow.collections.reduce import Groups
    from meander.dataflow.control.resources import Resources
    from meander.dataflow.execution_plan.difference import difference
    from meander.dataflow.execution_plan.plan import ExecutionPlan
    from meander.dataflow.flow_control.flow_control import flow_control
    from meander.dataflow.generic_join.matches import Matches
    from meander.dataflow.generic_join.pattern import Pattern, pattern
    from meander.dataflow.interfaces import SourceOptions
    from meander.dataflow.logic.changeable import ChangeableLogic
    from meander.dataflow.operators.custom import OperatorServices
    from meander.dataflow.operators.keyed import columns
    from meander.dataflow.operators.keyed.context import Context
    from meander.dataflow.operators.retries import Retry
    from meander.dataflow.policies.drift import DriftTrigger
    from meander.dataflow.policies.ds2 import DS2Autoscaler
    from meander.dataflow.policies.metrics import (
        BinLoad,
        Metrics,
        OperatorLoad,
        PartitionLoad,
        WorkerLoad,
    )
    from meander.dataflow.policies.paced import PacedMigration
    from meander.dataflow.policies.policy import Policy, resized
    from meander.dataflow.policies.skew import SkewBalancer
    from meander.dataflow.policies.threshold import ThresholdAutoscaler
    from meander.dataflow.tables.changes import TableChange
    from meander.dataflow.windows.aggregation import WindowContext, WindowResult
    from meander.dataflow.windows.top import WindowTop
    from meander.dataflow.windows.window import Window, count, hopping, session, sliding, tumbling
    from meander.schemas.errors import MeanderError, SetupError
    from meander.state.encoding.object_column import ObjectColumn
    from meander.state.encoding.record import Record

__all__ = [
    "ArrangedCollection", "BinLoad", "ChangeableLogic", "Checkpointing", "Collection", "Context",
    "DS2Autoscaler", "DeadLetters", "DriftTrigger", "ExecutionPlan", "FileSink", "FileSource",
    "Flow", "Groups", "InProcessResult", "KafkaSink", "KafkaSource", "KeyedStream", "Matches",
    "MeanderError", "Metrics", "ObjectColumn", "OperatorLoad", "OperatorServices", "Options",
    "PacedMigration", "PartitionLoad", "PartitionReader", "Pattern", "Policy", "ProcessedStream",
    "Record", "Registry", "Resources", "Retry", "SetupError", "Sink", "SinkPart", "SinkRecord",
    "SkewBalancer", "Source", "SourceOptions", "SourceRecord", "Stream", "Table", "TableChange",
    "ThresholdAutoscaler", "UnreadableRecord", "Window", "WindowContext", "WindowResult",
    "WindowResults", "WindowTop",
    "WindowedStream", "WorkerLoad", "bootstrap", "columns", "count", "csv", "difference", "field",
    "flow_control", "header", "hopping", "nondeterministic", "pattern", "resized", "session",
    "sliding", "tumbling", "typed",
]  # fmt: skip

_MODULES = {
    "app.bootstrap.bootstrap": ["bootstrap"],
    "app.config.options": ["Options"],
    "connectors.custom.records": [
        "PartitionReader",
        "SinkRecord",
        "SourceRecord",
        "UnreadableRecord",
    ],
    "connectors.custom.sink": ["Sink", "SinkPart"],
    "connectors.custom.source": ["Source"],
    "connectors.files.sink": ["FileSink"],
    "connectors.files.source": ["FileSource"],
    "connectors.kafka.formats": ["field", "header"],
    "connectors.kafka.registry.registry": ["Registry"],
    "connectors.kafka.sink.sink": ["KafkaSink"],
    "connectors.kafka.source.source": ["KafkaSource"],
    "connectors.kafka.typed": ["csv", "typed"],
    "dataflow.api.checkpointing": ["Checkpointing"],
    "dataflow.api.collection": ["ArrangedCollection", "Collection"],
    "dataflow.api.dead_letters": ["DeadLetters"],
    "dataflow.api.determinism": ["nondeterministic"],
    "dataflow.api.flow": ["Flow"],
    "dataflow.api.in_process": ["InProcessResult"],
    "dataflow.api.stream": ["KeyedStream", "ProcessedStream", "Stream"],
    "dataflow.api.table": ["Table"],
    "dataflow.api.windowed": ["WindowResults", "WindowedStream"],
    "dataflow.collections.reduce": ["Groups"],
    "dataflow.control.resources": ["Resources"],
    "dataflow.execution_plan.difference": ["difference"],
    "dataflow.execution_plan.plan": ["ExecutionPlan"],
    "dataflow.flow_control.flow_control": ["flow_control"],
    "dataflow.generic_join.matches": ["Matches"],
    "dataflow.generic_join.pattern": ["Pattern", "pattern"],
    "dataflow.interfaces": ["SourceOptions"],
    "dataflow.logic.changeable": ["ChangeableLogic"],
    "dataflow.operators.custom": ["OperatorServices"],
    "dataflow.operators.keyed": ["columns"],
    "dataflow.operators.keyed.context": ["Context"],
    "dataflow.operators.retries": ["Retry"],
    "dataflow.policies.drift": ["DriftTrigger"],
    "dataflow.policies.ds2": ["DS2Autoscaler"],
    "dataflow.policies.metrics": [
        "BinLoad",
        "Metrics",
        "OperatorLoad",
        "PartitionLoad",
        "WorkerLoad",
    ],
    "dataflow.policies.paced": ["PacedMigration"],
    "dataflow.policies.policy": ["Policy", "resized"],
    "dataflow.policies.skew": ["SkewBalancer"],
    "dataflow.policies.threshold": ["ThresholdAutoscaler"],
    "dataflow.tables.changes": ["TableChange"],
    "dataflow.windows.aggregation": ["WindowContext", "WindowResult"],
    "dataflow.windows.top": ["WindowTop"],
    "dataflow.windows.window": ["Window", "count", "hopping", "session", "sliding", "tumbling"],
    "schemas.errors": ["MeanderError", "SetupError"],
    "state.encoding.object_column": ["ObjectColumn"],
    "state.encoding.record": ["Record"],
}
_WHERE = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> object:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(f"{__name__}.{_WHERE[name]}")
    if name == "columns":
        return import_module(f"{module.__name__}.{name}")
    return getattr(module, name)


def __dir__() -> list[str]:
    return __all__
