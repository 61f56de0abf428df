"""Alerts of users with three failed logins within five minutes. A login clears the failed ones."""

from meander import Flow, KafkaSink, KafkaSource, field

FIVE_MINUTES = 5 * 60_000  # milliseconds


def tried(context, failed, login):
    if login["ok"]:
        return context.forget()
    recent = [at for at in failed if at > context.time_ms - FIVE_MINUTES]
    failed = [*recent, context.time_ms]
    if len(failed) == 3:
        context.emit({"user": context.key, "failed": failed})
        context.forget()
    return failed


flow = Flow("failed-logins")
logins = flow.source(KafkaSource("logins", time=field("at")))
by_user = logins.key_by(lambda login: login["user"])
by_user.process("failed", list, tried, ttl=300).sink(KafkaSink("alerts"))
