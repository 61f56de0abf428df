"""The engine: logical time, progress, operators, migration; the Flow API for users."""

from dataflow.flow import Flow, KeyedStream, Stream
from dataflow.operators import columns

__all__ = ["Flow", "KeyedStream", "Stream", "columns"]
