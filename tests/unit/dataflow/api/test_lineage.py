"""I5: records in flight go on where they stood, or not at all: a place is known by what its records
have come through and where they go on to, as names that are numbered say nothing of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from meander import Checkpointing, Flow, nondeterministic
from meander.dataflow.api.nodes import Guarantee
from meander.dataflow.api.plan import Plan
from meander.dataflow.api.stream import KeyedStream, Stream
from meander.dataflow.checkpoint.compatibility import expect_fits, restorable_parts
from meander.dataflow.simulation.in_memory import ListSink, ListSource
from meander.schemas.errors import SetupError
from meander.state.checkpoint.checkpoint import Checkpoint, Cut, Piece
from meander.state.keys.bins import BinSpace
from meander.state.keys.ids import ExecutionId, WorkerId
from meander.state.layers.topic import RecordLocation

Lines = Stream[Any]
Define = Callable[[Lines], None]
ONE = WorkerId(0)


def plan(define: Define, source: str = "lines", delivery: Guarantee = "at_least_once") -> Plan:
    flow = Flow("words", bins=1, delivery=delivery)
    define(flow.source(ListSource([[(1, "a")]]), name=source))
    return Plan(flow)


def cut_at(was: Plan, *places: tuple[str, int]) -> Checkpoint:
    """A checkpoint of a flow with four records in flight at each of these."""
    pieces = tuple(
        Piece(
            *at, ONE, 3, 4, (RecordLocation(b"p", 0, n, 9),), was.input_at(*at) in was.keyed_inputs
        )
        for n, at in enumerate(places)
    )
    owners = (ONE,) * was.groups.total
    cut = Cut(members=(ONE,), owners=owners, pieces=pieces, lineage=(*was.lineages.values(),))
    return Checkpoint(4, ExecutionId(7), BinSpace(1), 5, (), cut)


def one(value: Any) -> Any:
    return value


def two(value: Any) -> Any:
    return value


def which(_: Any) -> str:
    return "even"


def fold(lines: KeyedStream[Any], name: str = "n") -> KeyedStream[Any]:
    return lines.fold(name, int, lambda n, word: (n, word))


def side_by_side(left: KeyedStream[Any], right: KeyedStream[Any]) -> KeyedStream[Any]:
    return left.connect(right, "both", int, lambda _, n, __: n, lambda _, n, __: n)


def chain(lines: Lines) -> None:
    lines.map(one).map(two).sink(ListSink())


def divided(lines: Lines) -> None:
    first = lines.map(one)
    first.map(two).sink(ListSink())
    first.sink(ListSink(), "side")


def branches(first: str, second: str) -> Define:
    def define(lines: Lines) -> None:
        lines.map(one).sink(ListSink(), first)
        lines.map(two).sink(ListSink(), second)

    return define


def forked(*sinks: str) -> Define:
    def define(lines: Lines) -> None:
        mapped = lines.map(one)
        for name in sinks:
            mapped.sink(ListSink(), name)

    return define


def connected(left: int, right: int) -> Define:
    def define(lines: Lines) -> None:
        streams = lines.key_by(one), lines.key_by(two)
        side_by_side(streams[left], streams[right]).sink(ListSink())

    return define


def alone(lines: Lines) -> None:
    fold(lines.key_by(one), "both").sink(ListSink())


def split(first: str, second: str) -> Define:
    def define(lines: Lines) -> None:
        left, right = lines.split(which, first, second)
        left.map(one).sink(ListSink(), "a")
        right.map(two).sink(ListSink(), "b")

    return define


def sides(*names: str) -> Define:
    def define(lines: Lines) -> None:
        keyed = lines.key_by(one)
        done = keyed.process("n", int, lambda _, n, __: n, side=["early", "late"])
        for name in names:
            done.side(name).map(one).sink(ListSink(), "side")

    return define


def counted(lines: Lines) -> None:
    fold(lines.key_by(one)).sink(ListSink())


def counted_behind_a_map(lines: Lines) -> None:
    fold(lines.map(two).key_by(one)).sink(ListSink())


def counted_second(lines: Lines) -> None:
    lines.key_by(two).sink(ListSink(), "raw")
    fold(lines.key_by(one)).sink(ListSink())


def looped(*steps: Callable[[Any], Any]) -> Define:
    def define(lines: Lines) -> None:
        def body(round: Lines) -> tuple[Lines, Lines]:
            for step in steps:
                round = round.map(step)
            again, done = round.split(which, "again", "done")
            return again, done

        lines.iterate("steps", body).sink(ListSink())

    return define


def counting_loop(keyed: bool) -> Define:
    def body(round: Lines) -> tuple[Lines, Lines]:
        again, done = fold(round.key_by(one)).split(which, "again", "done")
        return again, done

    def define(lines: Lines) -> None:
        (lines.key_by(one) if keyed else lines).iterate("steps", body).sink(ListSink())

    return define


def sunk(lines: Lines) -> None:
    lines.map(one).sink(ListSink())


def sunk_second(lines: Lines) -> None:
    lines.sink(ListSink())
    lines.map(one).sink(ListSink())


def kept_back(lines: Lines) -> None:
    lines.key_by(one).sink(ListSink(), "n")


REFUSED: dict[str, tuple[Define, tuple[str, int], Define, str]] = {
    "a chain that is divided": (
        chain, ("map-2", 0), divided,
        ("operator 'map-2', which stood behind source 'lines', and stands behind source 'lines',"
         " then operator 'map'"),
    ),
    "a chain that becomes one": (
        divided, ("map-2", 0), chain,
        ("operator 'map-2', which stood behind source 'lines', then operator 'map', and stands"
         " behind source 'lines'"),
    ),
    "a chain without its end": (
        chain, ("map-2", 0), sunk, "operator 'map-2', and the flow has none of that name"
    ),
    "branches in another order": (
        branches("a", "b"), ("map", 0), branches("b", "a"),
        "operator 'map', which led to sink 'a', and leads to sink 'b'",
    ),
    "a branch that is gone, and the next has its name": (
        branches("a", "b"), ("map", 0), forked("b"),
        "operator 'map', which led to sink 'a', and leads to sink 'b'",
    ),
    "a reader that is gone": (
        forked("a", "b"), ("map", 0), forked("a"),
        "operator 'map', which led to sink 'a' and sink 'b', and leads to sink 'a'",
    ),
    "a reader that nobody has any more": (
        connected(0, 1), ("key_by exchange", 0), alone,
        "which led to input 0 of operator 'both', and leads to operator 'both'",
    ),
    "the left side on the right": (
        connected(0, 1), ("both", 0), connected(1, 0),
        ("operator 'both', which stood behind source 'lines', then operator 'key_by', then operator"
         " 'key_by exchange', and stands behind source 'lines', then operator 'key_by-2', then"),
    ),
    "the right side on the left": (
        connected(0, 1), ("both", 1), connected(1, 0), "operator 'both', which stood behind"
    ),
    "an input that is gone": (
        connected(0, 1), ("both", 1), alone,
        "operator 'both', and the flow has none with input 1",
    ),
    "outputs of a split that are renamed": (
        split("even", "odd"), ("map", 0), split("even ones", "odd"),
        ("behind source 'lines', then output 'even' of operator 'split', and stands behind source"
         " 'lines', then output 'even ones' of operator 'split'"),
    ),
    "outputs of a split in another order": (
        split("even", "odd"), ("b", 0), split("odd", "even"),
        ("behind source 'lines', then output 'odd' of operator 'split', then operator 'map-2', and"
         " stands behind source 'lines', then output 'even' of"),
    ),
    "another side output": (
        sides("early"), ("map", 0), sides("late"),
        "behind output 'early' of operator 'n', and stands behind output 'late' of operator 'n'",
    ),
    "a step before a stateful operator": (
        counted, ("n", 0), counted_behind_a_map,
        "and stands behind source 'lines', then operator 'map', then operator 'key_by'",
    ),
    "a stream whose number has shifted": (
        counted, ("key_by exchange", 0), counted_second,
        "which led to operator 'n', and leads to sink 'raw'",
    ),
    "a sink whose number has shifted": (
        sunk, ("sink", 0), sunk_second, "operator 'map', and stands behind source 'lines'"
    ),
    "a stateful operator that is a sink": (
        counted, ("n", 0), kept_back, "which led to operator 'n', and leads to sink 'n'"
    ),
    "a step before what goes round again": (
        looped(one), ("steps", 1), looped(one, two),
        ("then loop 'steps', then operator 'map', then operator 'map-2', then output 'again' of"
         " operator 'split', then operator 'steps feedback'"),
    ),
    "a loop whose records have got keys": (
        counting_loop(False), ("steps", 1), counting_loop(True),
        "operator 'steps', which has keys there, and they have none",
    ),
}  # fmt: skip
"""By what has changed: the flow as it was, where records are in flight, the flow as it is, and what
is said of it."""


@pytest.mark.parametrize("changed", REFUSED)
def test_records_in_flight_go_on_nowhere_else(changed: str) -> None:
    was, place, now, said = REFUSED[changed]
    found, other = cut_at(plan(was), place), plan(now)
    with pytest.raises(SetupError, match=said) as raised:
        expect_fits(found, other)
    for words in (
        "4 records are on their way to",
        "meander checkpoint words --policy aligned --savepoint aligned",
        "--allow-dropped-state",
        "meander reset words",
    ):
        assert words in str(raised.value)
    expect_fits(found, other, allow_dropped=True)
    assert not restorable_parts(found, other).cut.pieces


def another_function(lines: Lines) -> None:
    lines.map(two).map(one).sink(ListSink())


def longer(lines: Lines) -> None:
    """What has not come to the chain yet goes through all of it."""
    lines.filter(one).map(one).map(two).sink(ListSink())


def shown(lines: Lines) -> None:
    fold(lines.key_by(one).probe("here")).probe("there").sink(ListSink())


def shown_and_counted_again(lines: Lines) -> None:
    keyed = lines.key_by(one)
    fold(keyed.probe("here")).map(two).sink(ListSink())
    fold(keyed, "again").sink(ListSink(), "again")


ACCEPTED: dict[str, tuple[Define, tuple[str, int], Define]] = {
    "nothing": (chain, ("map-2", 0), chain),
    "functions under the same names": (chain, ("map-2", 0), another_function),
    "the chain behind the place": (chain, ("map-2", 0), longer),
    "a chain elsewhere": (chain, ("sink", 0), divided),
    "one more reader": (forked("a"), ("map", 0), forked("a", "b")),
    "one more reader of a key": (counted, ("key_by exchange", 0), shown_and_counted_again),
    "a probe": (counted, ("key_by exchange", 0), shown),
    "a probe before a stateful operator": (counted, ("n", 0), shown),
    "what is behind a stateful operator": (counted, ("n", 0), shown_and_counted_again),
    "one more branch": (sunk, ("map", 0), branches("sink", "b")),
    "a loop whose records had keys": (counting_loop(True), ("steps", 1), counting_loop(False)),
    "a loop's body before it": (looped(one), ("steps", 0), looped(two, one)),
}
"""By what has changed: the flow as it was, where records are in flight, and the flow as it is."""


@pytest.mark.parametrize("changed", ACCEPTED)
def test_what_has_changed_elsewhere_is_nothing_to_them(changed: str) -> None:
    was, place, now = ACCEPTED[changed]
    found, other = cut_at(plan(was), place), plan(now)
    expect_fits(found, other)
    assert restorable_parts(found, other) == found


def test_a_source_that_is_renamed_is_named() -> None:
    found = cut_at(plan(chain), ("map-2", 0))
    with pytest.raises(SetupError, match="behind source 'lines', and stands behind source 'rows'"):
        expect_fits(found, plan(chain, source="rows"))


def test_results_that_have_to_travel_first_do_not_go_on_behind_that() -> None:
    """Exactly once, each is on one worker that follows from its time."""
    found = cut_at(plan(chain), ("sink", 0))
    with pytest.raises(SetupError, match="then operator 'map-2', then operator 'map-2 exchange'"):
        expect_fits(found, plan(chain, delivery="exactly_once"))


def test_a_checkpoint_without_records_in_flight_fits_whatever_stood_where() -> None:
    expect_fits(cut_at(plan(chain)), plan(divided))


def test_of_a_checkpoint_that_does_not_say_how_records_came_names_have_to_do() -> None:
    found = cut_at(plan(chain), ("map-2", 0))
    found = replace(found, cut=replace(found.cut, lineage=()))
    expect_fits(found, plan(divided))
    with pytest.raises(SetupError, match="operator 'map-2', and the flow has none of that name"):
        expect_fits(found, plan(sunk))


def everything(lines: Lines) -> None:
    early, late = lines.split(which, "early", "late")

    def body(round: KeyedStream[Any]) -> tuple[KeyedStream[Any], KeyedStream[Any]]:
        return round.map(one), round

    done = side_by_side(early.key_by(one), late.key_by(one).iterate("steps", body))
    done.probe("here").sink(ListSink())


def test_a_lineage_is_described_in_agreed_words() -> None:
    """They lie in checkpoints, and are compared with those of other releases."""
    early = "source 'lines'", "output 'early' of operator 'split'"
    late = "source 'lines'", "output 'late' of operator 'split'"
    left, right, loop = "input 0 of operator 'both'", "input 1 of operator 'both'", "loop 'steps'"
    entering = *late, "operator 'key_by-2'", "operator 'key_by-2 exchange'"
    assert {at: tuple(way[2:]) for at, way in plan(everything).lineages.items()} == {
        ("split", 0): (("source 'lines'",), (left, loop)),
        ("key_by", 0): (early, (left,)),
        ("key_by exchange", 0): ((*early, "operator 'key_by'"), (left,)),
        ("key_by-2", 0): (late, (loop,)),
        ("key_by-2 exchange", 0): ((*late, "operator 'key_by-2'"), (loop,)),
        ("steps", 0): (entering, (loop,)),
        ("map", 0): ((*entering, loop), (loop,)),
        ("steps feedback", 0): ((*entering, loop, "operator 'map'"), (loop,)),
        ("steps", 1): ((*entering, loop, "operator 'map'", "operator 'steps feedback'"), (loop,)),
        ("steps exit", 0): ((*entering, loop), (right,)),
        ("both", 0): ((*early, "operator 'key_by'", "operator 'key_by exchange'"), (left,)),
        ("both", 1): ((*entering, loop, "operator 'steps exit'"), (right,)),
        ("here", 0): (("operator 'both'",), ("probe 'here'", "sink 'sink'")),
        ("sink", 0): (("operator 'both'",), ("sink 'sink'",)),
    }


def test_an_outbox_has_the_way_of_its_sink() -> None:
    flow = Flow("words", delivery="exactly_once", checkpoints=Checkpointing(interval=1))
    flow.source(ListSource([[]])).map(nondeterministic(one)).sink(ListSink())
    ways = Plan(flow).lineages
    assert ways["sink", 1] == ways["sink", 0]._replace(input=1)
