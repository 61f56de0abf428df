"""Orders with the names of their customers, from a changelog of customers."""

from meander import Flow, KafkaSink, KafkaSource


def ordered(context, name, order):
    context.emit({**order, "name": name})
    return name or context.forget()


def changed(context, name, change):
    _, customer = change
    return customer["name"] if customer else context.forget()


flow = Flow("customer-orders")
orders = flow.source(KafkaSource("orders"), "orders")
customers = flow.source(KafkaSource("customers", key="str", pairs=True), "customers")
by_customer = orders.key_by(lambda order: order["customer"])
by_key = customers.key_by(lambda change: change[0])
named = by_customer.connect(by_key, "name", lambda: None, ordered, changed)
named.sink(KafkaSink("named-orders"))
