"""Orders without repetitions: an id passes once within an hour."""

from meander import Flow, KafkaSink, KafkaSource, field

flow = Flow("orders-once")
orders = flow.source(KafkaSource("orders", time=field("at")))
once = orders.key_by(lambda order: order["id"]).first("seen", within=3600)
once.sink(KafkaSink("orders-once"))
