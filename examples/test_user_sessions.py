from user_sessions import flow

from meander.testing import TestFlow

MINUTE = 60_000


def sessions(*clicks):
    with TestFlow(flow) as run:
        run.feed("clicks", *({"user": user, "at": minute * MINUTE} for minute, user in clicks))
        run.run()
        assert run.states("session") == {}
        return [
            (one["key"], one["start"] // MINUTE, one["end"] // MINUTE, one["value"])
            for one in run.values("user-sessions")
        ]


def test_a_gap_parts_two_sessions():
    clicks = [(minute, "ann") for minute in (0, 20, 45, 100)]
    assert sessions(*clicks) == [("ann", 0, 75, 3), ("ann", 100, 130, 1)]


def test_a_session_lasts_a_day_at_most():
    clicks = [(minute, "ann") for minute in range(0, 1460, 20)]
    assert sessions(*clicks) == [("ann", 0, 1440, 72), ("ann", 1440, 1470, 1)]


def test_each_user_has_sessions_of_their_own():
    assert sessions((0, "ann"), (10, "bob"), (20, "ann")) == [
        ("bob", 10, 40, 1),
        ("ann", 0, 50, 2),
    ]
