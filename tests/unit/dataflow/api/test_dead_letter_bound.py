"""The bound of dead letters: more within a time fail the flow, or are a warning."""

from __future__ import annotations

import pytest

from meander import DeadLetters, Flow, KafkaSink, KafkaSource, SetupError
from meander.dataflow.api.dead_letters import DeadLetterCount
from meander.schemas.errors import MeanderError
from meander.testing import TestFlow


def _flow(bound: DeadLetters | None) -> Flow:
    flow = Flow("orders", dead_letters=bound)
    orders = flow.source(KafkaSource("orders"))
    orders.map(lambda order: order["price"]).sink(KafkaSink("prices"))
    return flow


def test_flow_with_more_dead_letters_than_the_limit_fails() -> None:
    with TestFlow(_flow(DeadLetters(limit=2, per=60))) as run:
        run.feed("orders", {"price": 1}, {}, {})
        run.run_until_idle()
        run.feed("orders", b"{oops")
        with pytest.raises(MeanderError, match=r"flow 'orders': 3 dead letters within 60 s"):
            run.run()
        assert len(run.dead_letters) == 3
        with pytest.raises(MeanderError, match="its limit is 2"):
            run.run()


def test_flow_with_as_many_dead_letters_as_the_limit_goes_on() -> None:
    with TestFlow(_flow(DeadLetters(limit=2))) as run:
        run.feed("orders", {}, {}, {"price": 1})
        run.run()
        assert len(run.dead_letters) == 2
    assert run.values("prices") == [1]


def test_dead_letters_of_earlier_times_do_not_count() -> None:
    with TestFlow(_flow(DeadLetters(limit=1, per=10))) as run:
        for _ in range(4):
            run.feed("orders", {})
            run.advance(11.0)
        run.run()
        assert len(run.dead_letters) == 4


def test_continue_warns_once(caplog: pytest.LogCaptureFixture) -> None:
    with TestFlow(_flow(DeadLetters(limit=0, then="continue"))) as run:
        run.feed("orders", {}, {}, {"price": 1})
        run.run()
        assert len(run.dead_letters) == 2
    assert caplog.text.count("too_many_dead_letters") == 1


def test_count_goes_on_over_executions() -> None:
    count = DeadLetterCount("orders", DeadLetters(limit=3, per=10))
    count.note(2, 1.0)
    count.start_execution()
    count.note(0, 2.0)
    count.note(1, 3.0)
    assert count.total == 3
    with pytest.raises(MeanderError, match="4 dead letters"):
        count.note(2, 4.0)


def test_bound_that_bounds_nothing_is_refused() -> None:
    with pytest.raises(SetupError, match="its limit is -1"):
        DeadLetters(limit=-1)
    with pytest.raises(SetupError, match="its per is 0"):
        DeadLetters(limit=1, per=0)
    with pytest.raises(SetupError, match="its then is 'stop'"):
        DeadLetters(limit=1, then="stop")  # type: ignore[arg-type]
    with pytest.raises(SetupError, match="its limit is '100'; give a whole number"):
        DeadLetters(limit="100")  # type: ignore[arg-type]
    with pytest.raises(SetupError, match="its per is '1m'; give seconds"):
        DeadLetters(limit=1, per="1m")  # type: ignore[arg-type]
    with pytest.raises(SetupError, match="flow 'orders': its dead_letters is 100; give it Dead"):
        Flow("orders", dead_letters=100)  # type: ignore[arg-type]


# -- what a test expects of dead letters


def run_with(*, read: int, unread: int) -> None:
    """Run a flow with dead letters of which the test reads some."""
    with TestFlow(_flow(None)) as run:
        run.feed("orders", *[{}] * read)
        run.run_until_idle()
        assert not read or len(run.dead_letters) == read
        run.feed("orders", *[{}] * unread)
        run.run()


def test_test_that_leaves_dead_letters_unread_fails() -> None:
    with pytest.raises(AssertionError, match=r"1 dead letter was not read; .* 'map': KeyError"):
        run_with(read=0, unread=1)


def test_later_dead_letters_than_those_that_a_test_has_read_fail_it() -> None:
    with pytest.raises(AssertionError, match="2 dead letters were not read"):
        run_with(read=1, unread=2)
    run_with(read=3, unread=0)


def test_test_may_leave_dead_letters_unread() -> None:
    with TestFlow(_flow(None), dead_letters="allow") as run:
        run.feed("orders", {})
        run.run()
    assert len(run.dead_letters) == 1


def _fail_with_unread() -> None:
    with TestFlow(_flow(None)) as run:
        run.feed("orders", {})
        run.run()
        raise ZeroDivisionError


def test_error_of_a_test_is_not_replaced() -> None:
    with pytest.raises(ZeroDivisionError):
        _fail_with_unread()
