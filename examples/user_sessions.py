"""Sessions of users: a session ends 30 minutes behind its last click, and within a day."""

from meander import Flow, KafkaSink, KafkaSource, columns, field, session

flow = Flow("user-sessions")
clicks = flow.source(KafkaSource("clicks", time=field("at"))).key_by(lambda click: click["user"])
sessions = clicks.window("session", session(30 * 60, longest=24 * 3600, late=10))
counts = sessions.fold(columns.count())
counts.sink(KafkaSink("user-sessions"))
