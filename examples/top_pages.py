"""The three pages with the most views of each minute. A view that comes late is left out."""

from meander import Flow, KafkaSink, KafkaSource, columns, field, tumbling

flow = Flow("top-pages")
views = flow.source(KafkaSource("views", time=field("at"))).key_by(lambda view: view["page"])
counts = views.window("views", tumbling(60)).fold(columns.count())
counts.top(3).sink(KafkaSink("top-pages"))
