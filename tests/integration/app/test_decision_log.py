"""I3 and I9 through a recovery: a worker knows which bins moved where records apply as they arrive,
also in a flow that delivers at least once."""

from __future__ import annotations

from contextlib import closing
from typing import Literal

import pytest

from meander import Flow, KafkaSink, KafkaSource
from meander.app.recovery.decision_log import to_bytes
from meander.app.recovery.restart import decided_before, needed_history
from meander.connectors.topics.control import DecisionTopic
from meander.connectors.topics.internal_topics import topic_names
from meander.dataflow.api.plan import Plan
from meander.dataflow.control.decisions import StartDecision
from meander.dataflow.control.reassignment import Moves
from meander.state.keys.ids import Bin, ExecutionId, WorkerId
from tests.support.kafka.brokers import Broker
from tests.support.kafka.topics import create_topic

FIRST, SECOND = ExecutionId(1), ExecutionId(2)
OWNERS = WorkerId(0), WorkerId(1)


def flow(order: Literal["event", "processing"]) -> Plan:
    flow = Flow("f", bins=1)
    keyed = flow.source(KafkaSource("in")).key_by(lambda key: key)
    keyed.fold("n", int, lambda n, _: (n + 1, n + 1), order=order).sink(KafkaSink("out"))
    return Plan(flow)


@pytest.mark.parametrize(("order", "bins"), [("processing", (Bin(1),)), ("event", None)])
def test_a_worker_knows_the_bins_that_changed_hands_where_records_apply_as_they_arrive(
    broker: Broker, prefix: str, order: Literal["event", "processing"], bins: tuple[Bin, ...] | None
) -> None:
    called, settings = topic_names(prefix, "f"), {"bootstrap.servers": broker.bootstrap}
    create_topic(broker.bootstrap, called.decisions, 1)
    with closing(DecisionTopic(settings, called.decisions)) as decisions:
        decisions.write(to_bytes(FIRST, StartDecision(0, OWNERS, 2)))
        # Bin 0 stays where it is.
        decisions.write(to_bytes(FIRST, Moves("m", 7, WorkerId(0), (Bin(0), Bin(1)))))
        decisions.write(to_bytes(SECOND, StartDecision(9, OWNERS, 2, checkpoint=4)))
        decisions.write(to_bytes(SECOND, Moves("later", 12, WorkerId(1), (Bin(0),))))
    decided = [*decided_before(settings, called, SECOND)]
    moves = needed_history(flow(order), settings, called, SECOND, decided).moves
    # What was decided in the execution that it is part of comes to it otherwise.
    assert [one.bins for one in moves] == ([] if bins is None else [bins])
