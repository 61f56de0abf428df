from late_counts import flow

from meander.testing import TestFlow


def count(minute, views, late=False):
    return {"page": "home", "minute": minute, "views": views, "late": late}


def test_a_late_view_corrects_its_minute():
    with TestFlow(flow) as run:
        for at in (1_000, 59_000, 61_000, 30_000, 130_000):
            run.feed("views", {"page": "home", "at": at})
        run.run()
        assert run.values("views-per-minute") == [
            count(0, 2),
            count(0, 3, late=True),
            count(60_000, 1),
            count(120_000, 1),
        ]
