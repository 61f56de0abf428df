from user_sessions import flow

from meander.testing import TestFlow

MINUTE = 60_000


def test_a_gap_parts_two_sessions():
    with TestFlow(flow) as run:
        for minute in (0, 20, 45, 100):
            run.feed("clicks", {"user": "ann", "at": minute * MINUTE})
        run.run()
        assert run.values("user-sessions") == [
            {"user": "ann", "start": 0, "end": 45 * MINUTE, "clicks": 3},
            {"user": "ann", "start": 100 * MINUTE, "end": 100 * MINUTE, "clicks": 1},
        ]
        assert run.states("session") == {}


def test_each_user_has_sessions_of_their_own():
    with TestFlow(flow) as run:
        for minute, user in ((0, "ann"), (10, "bob"), (20, "ann")):
            run.feed("clicks", {"user": user, "at": minute * MINUTE})
        run.run()
        assert [(one["user"], one["clicks"]) for one in run.values("user-sessions")] == [
            ("bob", 1),
            ("ann", 2),
        ]
