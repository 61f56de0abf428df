"""Views per page and minute. A view may come ten seconds late; a later one is set aside."""

from meander import Flow, KafkaSink, KafkaSource, columns, field, tumbling

flow = Flow("late-counts")
views = flow.source(KafkaSource("views", time=field("at"))).key_by(lambda view: view["page"])
counts = views.window("views", tumbling(60, late=10)).fold(columns.count())
counts.sink(KafkaSink("views-per-minute"))
counts.side("late").sink(KafkaSink("late-views"), "write late views")
