"""The three pages with the most views of each minute. A view that comes late is left out."""

from meander import Flow, KafkaSink, KafkaSource, columns, field, tumbling


def counted(context, counts, count):
    context.notify()
    return [*counts, (-count["value"], count["key"])]


def ranked(context, counts):
    top = [{"page": page, "views": -views} for views, page in sorted(counts)[:3]]
    context.emit({"minute": context.key, "top": top})
    context.forget()


flow = Flow("top-pages")
views = flow.source(KafkaSource("views", time=field("at"))).key_by(lambda view: view["page"])
counts = views.window("views", tumbling(60)).fold(columns.count())
by_minute = counts.key_by(lambda count: count["start"])
by_minute.process("top", list, counted, on_notify=ranked).sink(KafkaSink("top-pages"))
