"""The driver knows which topics a running flow does not read, and would read after a restart."""

from __future__ import annotations

from meander import Flow, KafkaSink, KafkaSource
from meander.app.driver.new_topics import unread
from meander.dataflow.api.expansion import part_names


def test_new_topics_of_a_pattern_are_unread_and_others_are_not() -> None:
    flow = Flow("f")
    orders = flow.source(KafkaSource(pattern="orders-.*"), "orders")
    sales = flow.source(KafkaSource(["web", "shop"]), "sales")
    flow.merge(orders, sales, flow.source(KafkaSource("single"), "single")).sink(KafkaSink("out"))
    sources = part_names(flow.nodes, ["orders-a"])
    assert sources == ["orders:orders-a", "sales:web", "sales:shop"]
    present = ["web", "orders-c", "orders-a", "other", "orders-b"]
    assert unread(flow.nodes, sources, present) == ["orders:orders-b", "orders:orders-c"]
    assert unread(flow.nodes, sources, []) == [], "deleted topics are none of a pattern"
