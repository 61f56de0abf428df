from customer_orders import flow

from meander.testing import TestFlow


def test_an_order_gets_the_name_of_its_time():
    with TestFlow(flow) as run:
        run.feed("customers", {"name": "Ann"}, key="7", ms=1_000)
        run.feed("customers", {"name": "Anna"}, key="7", ms=3_000)
        run.feed("customers", None, key="7", ms=5_000)
        for ms in (2_000, 4_000, 6_000):
            run.feed("orders", {"id": ms, "customer": "7"}, ms=ms)
        run.run()
        assert [order["name"] for order in run.values("named-orders")] == ["Ann", "Anna", None]
        assert run.states("join") == {}
