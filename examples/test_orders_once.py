from orders_once import flow

from meander.testing import TestFlow

HOUR = 3_600_000


def test_an_order_passes_once_an_hour():
    with TestFlow(flow) as run:
        for at in (0, 1_000, HOUR - 1, HOUR, HOUR + 1):
            run.feed("orders", {"id": 7, "at": at})
        run.run()
        assert [order["at"] for order in run.values("orders-once")] == [0, HOUR]
        assert run.states("seen") == {7: True}
