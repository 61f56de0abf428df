"""Views per page and minute. A view that comes late corrects the count of its minute."""

from meander import Flow, KafkaSink, KafkaSource, field

MINUTE = 60_000  # milliseconds


def viewed(context, views, view):
    _, minute = context.key
    if context.time_ms >= minute + MINUTE:
        return report(context, views + 1)
    context.timer(minute + MINUTE)
    return views + 1


def report(context, views):
    page, minute = context.key
    late = context.event_ms < context.time_ms
    context.emit({"page": page, "minute": minute, "views": views, "late": late})
    return views


flow = Flow("late-counts")
views = flow.source(KafkaSource("views", time=field("at")))
by_minute = views.key_by(lambda view: (view["page"], view["at"] // MINUTE * MINUTE))
counts = by_minute.process("views", int, viewed, report, uses=["event_ms"], ttl=3600)
counts.sink(KafkaSink("views-per-minute"))
