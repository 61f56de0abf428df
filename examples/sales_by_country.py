"""Sales of three topics in Avro, written to a topic for each country."""

from os import environ

from meander import Flow, KafkaSink, KafkaSource, Registry

# A registry in memory serves tests; set REGISTRY to an URL such as http://registry:8081.
sale = Registry(environ.get("REGISTRY", "mock://sales"), subjects="record").avro("sale.avsc")

flow = Flow("sales-by-country")
sales = flow.source(KafkaSource(["sales-app", "sales-shop", "sales-web"], sale))
sales.sink(KafkaSink(lambda one: f"sold-{one['country']}", sale, topics="sold-.."))
