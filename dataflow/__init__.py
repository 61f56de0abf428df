"""The engine: logical time, progress, operators, migration; the Flow API for users."""

from dataflow.checkpoint.policy import Checkpointing
from dataflow.declared import nondeterministic
from dataflow.flow import Flow
from dataflow.operators import columns
from dataflow.stream import KeyedStream, Stream

__all__ = ["Checkpointing", "Flow", "KeyedStream", "Stream", "columns", "nondeterministic"]
