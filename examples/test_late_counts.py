from late_counts import flow

from meander.testing import TestFlow


def count(minute, views):
    return {"key": "home", "start": minute, "end": minute + 60_000, "value": views}


def test_a_minute_counts_views_until_ten_seconds_behind_it():
    with TestFlow(flow) as run:
        for at in (1_000, 59_000, 69_999, 30_000, 70_000, 40_000):
            run.feed("views", {"page": "home", "at": at})
        run.run()
        assert run.values("views-per-minute") == [count(0, 3), count(60_000, 2)]
        assert run.values("late-views") == [{"page": "home", "at": 40_000}]
