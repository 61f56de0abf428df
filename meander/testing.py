"""What tests of a flow need: simulated workers, topics in memory, and faults.

>>> from meander import Flow, KafkaSink, KafkaSource
>>> from meander.testing import TestFlow
>>> flow = Flow("upper")
>>> flow.source(KafkaSource("lines", value="str")).map(str.upper).sink(KafkaSink("out"))
>>> with TestFlow(flow, workers=2) as run:
...     run.feed("lines", "to be")
...     run.run()
>>> run.values("out")
['TO BE']
"""

from meander.connectors.testing.answers import Answer
from meander.connectors.testing.in_memory import TopicRecord
from meander.connectors.testing.in_memory_topics import Feed, Idle
from meander.connectors.testing.simulated_flow import TestFlow
from meander.dataflow.simulation.faults import At, Control, Crash, Jump, Pause, Planted, Raise, Slow
from meander.dataflow.simulation.in_memory import DeadLetter, Result
from meander.dataflow.simulation.simulator import AddPartition, Join, Leave, MovePartition
from meander.schemas.dead_letter import OriginalRecord

__all__ = [
    "AddPartition",
    "Answer",
    "At",
    "Control",
    "Crash",
    "DeadLetter",
    "Feed",
    "Idle",
    "Join",
    "Jump",
    "Leave",
    "MovePartition",
    "OriginalRecord",
    "Pause",
    "Planted",
    "Raise",
    "Result",
    "Slow",
    "TestFlow",
    "TopicRecord",
]
