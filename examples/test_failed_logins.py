from failed_logins import flow

from meander.testing import TestFlow

MINUTE = 60_000


def alerts(*logins):
    with TestFlow(flow) as run:
        for minute, ok in logins:
            run.feed("logins", {"user": "ann", "ok": ok, "at": minute * MINUTE})
        run.run()
        return [[at // MINUTE for at in alert["failed"]] for alert in run.values("alerts")]


def test_three_failed_logins_within_five_minutes_give_an_alert():
    assert alerts((0, False), (2, False), (4, False)) == [[0, 2, 4]]


def test_a_timeout_clears_failed_logins():
    assert alerts((0, False), (2, False), (6, False)) == []
    assert alerts((0, False), (4, False), (6, False), (8, False)) == [[4, 6, 8]]


def test_a_login_clears_failed_logins():
    assert alerts((0, False), (1, False), (2, True), (3, False)) == []
    assert alerts((0, False), (1, False), (2, True), (3, False), (4, False), (5, False)) == [
        [3, 4, 5]
    ]
