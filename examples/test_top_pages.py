from top_pages import flow

from meander.testing import TestFlow


def test_a_minute_has_its_three_pages_with_the_most_views():
    with TestFlow(flow) as run:
        for at, page in enumerate("abbcccdd"):
            run.feed("views", {"page": page, "at": at})
        run.feed("views", {"page": "a", "at": 60_000}, {"page": "b", "at": 1})
        run.run()
        first, second = run.values("top-pages")
        assert [(one["key"], one["value"]) for one in first["value"]] == [
            ("c", 3),
            ("b", 2),
            ("d", 2),
        ]
        minute = {"start": 60_000, "end": 120_000}
        assert second == minute | {"value": [minute | {"key": "a", "value": 1}]}
        assert run.states("views") == run.states("views top") == {}
