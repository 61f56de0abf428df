"""Orders with the names of their customers, from a changelog of customers."""

from meander import Flow, KafkaSink, KafkaSource


def with_name(order, customer):
    return {**order, "name": customer and customer["name"]}


flow = Flow("customer-orders")
customers = flow.table(KafkaSource("customers"), "customers")
orders = flow.source(KafkaSource("orders"), "orders")
named = orders.join(customers, on=lambda order: order["customer"], how="left", step=with_name)
named.sink(KafkaSink("named-orders"))
