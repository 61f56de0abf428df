from sales_by_country import flow

from meander.testing import TestFlow


def sold(id, country):
    return {"id": id, "country": country, "cents": 100 * id}


def test_sales_of_three_topics_reach_the_topic_of_their_country():
    with TestFlow(flow) as run:
        run.feed("sales-web", sold(1, "ch"), sold(2, "de"), ms=1_000)
        run.feed("sales-shop", sold(3, "ch"), ms=2_000)
        run.feed("sales-app", sold(4, "de"), sold(5, "nowhere"), ms=3_000)
        run.run()
        assert run.values("sold-ch") == [sold(1, "ch"), sold(3, "ch")]
        assert run.values("sold-de") == [sold(2, "de"), sold(4, "de")]
        assert [letter.value["id"] for letter in run.dead_letters] == [5]
