"""The three pages with the most views of each minute. A view that comes late is left out."""

from meander import Flow, KafkaSink, KafkaSource, field

MINUTE = 60_000  # milliseconds


def viewed(context, views, view):
    _, start = context.key
    if context.time_ms < start + MINUTE:
        context.timer(start + MINUTE)
        return views + 1
    if context.time_ms > start + MINUTE:
        context.forget()
    return views


def minute_over(context, views):
    page, start = context.key
    context.emit({"page": page, "minute": start, "views": views})
    context.forget()


def counted(context, counts, count):
    context.notify()
    return [*counts, (-count["views"], count["page"])]


def ranked(context, counts):
    top = [{"page": page, "views": -views} for views, page in sorted(counts)[:3]]
    context.emit({"minute": context.key, "top": top})
    context.forget()


flow = Flow("top-pages")
views = flow.source(KafkaSource("views", time=field("at")))
by_page = views.key_by(lambda view: (view["page"], view["at"] // MINUTE * MINUTE))
counts = by_page.process("views", int, viewed, minute_over)
by_minute = counts.key_by(lambda count: count["minute"])
by_minute.process("top", list, counted, on_notify=ranked).sink(KafkaSink("top-pages"))
