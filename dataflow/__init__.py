"""The engine: logical time, progress, operators, migration; the Flow API for users."""

from dataflow.flow import Flow
from dataflow.operators import columns
from dataflow.stream import KeyedStream, Stream

__all__ = ["Flow", "KeyedStream", "Stream", "columns"]
