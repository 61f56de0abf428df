"""Alerts of users with three failed logins within five minutes. A login clears the failed ones."""

from meander import Flow, KafkaSink, KafkaSource, field

FIVE_MINUTES = 5 * 60_000  # milliseconds


def tried(context, failed, login):
    if login["ok"]:
        return []
    failed = [*failed, context.time_ms]
    if len(failed) == 3:
        context.emit({"user": context.key, "failed": failed})
        return []
    context.timer(context.time_ms + FIVE_MINUTES)
    return failed


def timeout(context, failed):
    return [at for at in failed if at + FIVE_MINUTES > context.time_ms]


flow = Flow("failed-logins")
logins = flow.source(KafkaSource("logins", time=field("at")))
by_user = logins.key_by(lambda login: login["user"])
by_user.process("failed", list, tried, timeout).sink(KafkaSink("alerts"))
