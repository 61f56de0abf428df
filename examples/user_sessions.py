"""Sessions of users: a session ends after 30 minutes without a click."""

from meander import Flow, KafkaSink, KafkaSource, field

GAP = 30 * 60_000  # milliseconds


def clicked(context, session, click):
    context.timer(context.time_ms + GAP, name="gap")  # in place of the last one
    start, clicks = session or (context.time_ms, 0)
    return start, clicks + 1


def gap_over(context, session):
    start, clicks = session
    end = context.time_ms - GAP
    context.emit({"user": context.key, "start": start, "end": end, "clicks": clicks})
    context.forget()


flow = Flow("user-sessions")
clicks = flow.source(KafkaSource("clicks", time=field("at")))
by_user = clicks.key_by(lambda click: click["user"])
by_user.process("session", lambda: None, clicked, gap_over).sink(KafkaSink("user-sessions"))
