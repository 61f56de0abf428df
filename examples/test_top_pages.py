from top_pages import flow

from meander.testing import TestFlow


def test_a_minute_has_its_three_pages_with_the_most_views():
    with TestFlow(flow) as run:
        for at, page in enumerate("abbcccdd"):
            run.feed("views", {"page": page, "at": at})
        run.feed("views", {"page": "a", "at": 60_000}, {"page": "b", "at": 1})
        run.run()
        assert run.values("top-pages") == [
            {
                "minute": 0,
                "top": [
                    {"page": "c", "views": 3},
                    {"page": "b", "views": 2},
                    {"page": "d", "views": 2},
                ],
            },
            {"minute": 60_000, "top": [{"page": "a", "views": 1}]},
        ]
        assert run.states("views") == run.states("top") == {}
