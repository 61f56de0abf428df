"""Sales of three topics in Avro, written to a topic for each country."""

from os import environ

from meander import Flow, KafkaSink, KafkaSource, Registry

# A registry in memory serves tests. The driver passes variables with MEANDER_ on to its workers.
registry = Registry(environ.get("MEANDER_REGISTRY__URL", "mock://sales"), subjects="record")
sale = registry.avro("sale.avsc")

flow = Flow("sales-by-country")
sales = flow.source(KafkaSource(["sales-app", "sales-shop", "sales-web"], sale))
sales.sink(KafkaSink(lambda one: f"sold-{one['country']}", sale, topics="sold-.."))
