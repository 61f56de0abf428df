"""Orders without repetitions: an id passes once within an hour."""

from meander import Flow, KafkaSink, KafkaSource, field

HOUR = 3_600_000  # milliseconds


def came(context, passed, order):
    if passed is not None and context.time_ms < passed + HOUR:
        return passed
    context.emit(order)
    return context.time_ms


flow = Flow("orders-once")
orders = flow.source(KafkaSource("orders", time=field("at")))
by_id = orders.key_by(lambda order: order["id"])
by_id.process("passed", lambda: None, came).sink(KafkaSink("orders-once"))
