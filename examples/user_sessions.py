"""Sessions of users: a session ends after 30 minutes without a click."""

from meander import Flow, KafkaSink, KafkaSource, field

GAP = 30 * 60_000  # milliseconds


def clicked(context, session, click):
    context.timer(context.time_ms + GAP)
    start, _, clicks = session or (context.time_ms, 0, 0)
    return start, context.time_ms, clicks + 1


def gap_over(context, session):
    start, end, clicks = session
    if context.time_ms < end + GAP:  # another click has come since
        return session
    context.emit({"user": context.key, "start": start, "end": end, "clicks": clicks})
    return None


flow = Flow("user-sessions")
clicks = flow.source(KafkaSource("clicks", time=field("at")))
by_user = clicks.key_by(lambda click: click["user"])
by_user.process("session", lambda: None, clicked, gap_over).sink(KafkaSink("user-sessions"))
