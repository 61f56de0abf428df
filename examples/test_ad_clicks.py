from ad_clicks import flow

from meander.testing import TestFlow

MINUTE = 60_000


def record(minute, **fields):
    return {"user": "ann", "ad": 7, "at": minute * MINUTE, **fields}


def test_a_click_meets_the_impressions_of_ten_minutes():
    with TestFlow(flow) as run:
        run.feed("impressions", record(0, place="top"), record(8, place="side"))
        run.feed("clicks", record(9), record(11), record(20))
        run.run()
        found = [(one["at"] // MINUTE, one["place"]) for one in run.values("ad-clicks")]
        assert found == [(9, "top"), (9, "side"), (11, "side")]
        assert run.states("shown") == {}
