"""Views per page and minute. A view that comes late corrects the count of its minute."""

from meander import Flow, KafkaSink, KafkaSource, field

MINUTE = 60_000  # milliseconds


def viewed(context, views, view):
    page, start = context.key
    if context.time_ms < start + MINUTE:
        context.timer(start + MINUTE)
    else:
        context.emit({"page": page, "minute": start, "views": views + 1, "late": True})
    return views + 1


def minute_over(context, views):
    page, start = context.key
    context.emit({"page": page, "minute": start, "views": views, "late": False})
    return views


flow = Flow("late-counts")
views = flow.source(KafkaSource("views", time=field("at")))
by_minute = views.key_by(lambda view: (view["page"], view["at"] // MINUTE * MINUTE))
by_minute.process("views", int, viewed, minute_over).sink(KafkaSink("views-per-minute"))
