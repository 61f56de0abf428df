"""A flow starts from no checkpoint that does not fit, and all that is in the way is told."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meander import Flow, columns, hopping, session, tumbling
from meander.dataflow.api.plan import Plan
from meander.dataflow.checkpoint.compatibility import expect_fits, renumbered, restorable_parts
from meander.dataflow.control.decisions import StartDecision
from meander.dataflow.operators.keyed.columns import ColumnFold
from meander.dataflow.simulation.in_memory import ListSink, ListSource
from meander.dataflow.windows.window import Windows
from meander.schemas.errors import MeanderError, SetupError
from meander.state.checkpoint.checkpoint import Checkpoint, Cut, Notification, Piece, Position
from meander.state.encoding.codec import definition_of
from meander.state.keys.bins import BinSpace
from meander.state.keys.ids import Bin, ExecutionId, LayerId, WorkerId
from meander.state.layers.manifest import Description, LayerPointer, Manifest
from meander.state.layers.topic import RecordLocation

ONE = WorkerId(0)


def plan(*operators: str, bins: int = 1) -> Plan:
    flow = Flow("words", bins=bins)
    stream = flow.source(ListSource([[(1, "a")]]))
    for name in operators:
        stream = stream.key_by(lambda word: word).fold(name, lambda: 0, lambda n, word: (n, word))
    stream.sink(ListSink())
    return Plan(flow)


def manifest(operator: str, codec: str = "msgpack") -> Manifest:
    layer = LayerPointer(
        LayerId(ExecutionId(7), ONE, 1), Description(0, 0, 0), "base", 3, 9, codec,
        (RecordLocation(b"layer", 0, 1, 50),),
    )  # fmt: skip
    return Manifest(operator, Bin(0), 0, (layer,))


def checkpoint(*manifests: Manifest, bins: int = 1) -> Checkpoint:
    cut = Cut(
        members=(ONE,), owners=(ONE,) * (1 << bins),
        positions=(Position("gone", 0, ONE, 5, None, 1, 1, 1),),
        notifications=(Notification("old", 3, b"k"),),
        pieces=(Piece("old", 0, ONE, 3, 4, (RecordLocation(b"p", 0, 1, 9),), True),),
    )  # fmt: skip
    return Checkpoint(4, ExecutionId(7), BinSpace(bins), 5, manifests, cut)


def test_an_earlier_checkpoint_is_named_where_there_is_one() -> None:
    with pytest.raises(SetupError, match="start from an earlier checkpoint, such as --from 3, or"):
        expect_fits(checkpoint(manifest("old")), plan("n"), earlier=3)


def test_each_mismatch_is_named_at_once() -> None:
    found = checkpoint(manifest("old"), manifest("n", "pickle"), bins=2)
    with pytest.raises(SetupError) as raised:
        expect_fits(found, plan("n"), outside=["topic 'lines' is gone"])
    said = str(raised.value)
    for words in (
        "it has 4 bins, and the flow has 2",
        "states of 'n' were written with codec 'pickle', and the operator's is",
        "it holds states of 'old', and the flow has no such operator (up to 3 keys, 50 bytes",
        "it holds positions of source 'gone'",
        "it holds notifications of operator 'old'",
        "4 records are on their way to operator 'old'",
        "topic 'lines' is gone",
        "give the flow bins=2",
        "--allow-dropped-state",
        "meander reset words",
    ):
        assert words in said


@pytest.mark.parametrize("redefined", [False, True])
def test_a_former_definition_is_advised_only_where_the_definition_differs(redefined: bool) -> None:
    outside = ["source 'lines' has read another topic"] if redefined else []
    found = replace(checkpoint(manifest("n")), cut=Cut(members=(ONE,), owners=(ONE, ONE)))
    with pytest.raises(SetupError, match="start it from scratch with meander reset") as raised:
        expect_fits(found, plan("n"), outside=outside, lost=["topic 'lines' was recreated"])
    assert ("define the flow as before" in str(raised.value)) == redefined


def test_operators_that_have_come_to_move_alone_are_named() -> None:
    flow = Flow("words", bins=1)
    keyed = flow.source(ListSource([[(1, "a")]])).key_by(lambda word: word)
    keyed.fold("n", lambda: 0, lambda n, word: (n, word), colocate=False).sink(ListSink())
    with pytest.raises(
        SetupError, match="of 0 operators moved separately, and now those of 1 do: 'n'"
    ):
        expect_fits(checkpoint(manifest("n")), Plan(flow), allow_dropped=True)


def joined(*arranged: str) -> Plan:
    """Return a flow that joins two collections, of which some are arranged by name."""
    flow = Flow("words", bins=1)
    sides = [
        flow.source(ListSource([[(1, (1, 2, 1))]]), name=name).collection(lambda row: row)
        for name in ("one", "two")
    ]
    left, right = (
        side.arrange(f"{name} rows") if name in arranged else side
        for side, name in zip(sides, ("one", "two"), strict=True)
    )
    left.join("both", right, lambda key, one, two: (one, two)).changes().sink(ListSink())
    return Plan(flow)


@pytest.mark.parametrize(
    ("before", "after", "cause"),
    [
        ((), ("two",), "had the arrangements 'left' and 'right', and now has the .* of 'two rows'"),
        (("two",), (), "had the arrangements 'left' and 'right' of 'two rows', and now has"),
    ],
)  # fmt: skip
def test_an_operator_that_has_other_arrangements_refuses_its_states(
    before: tuple[str, ...], after: tuple[str, ...], cause: str
) -> None:
    cut = Cut(members=(ONE,), owners=(ONE, ONE), arrangements=joined(*before).arrangements)
    found = replace(checkpoint(manifest("both")), cut=cut)
    expect_fits(found, joined(*before))
    with pytest.raises(SetupError, match=f"operator 'both' {cause}"):
        expect_fits(found, joined(*after), allow_dropped=True)


def test_a_fold_that_becomes_a_join_refuses_the_states_of_the_fold() -> None:
    found = replace(checkpoint(manifest("both")), cut=Cut(members=(ONE,), owners=(ONE, ONE)))
    with pytest.raises(SetupError, match="operator 'both' had no arrangements, and now has"):
        expect_fits(found, joined())


def test_what_the_flow_has_no_place_for_is_dropped_when_that_is_allowed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    found, now = checkpoint(manifest("old"), manifest("n")), plan("n", "new")
    expect_fits(found, now, allow_dropped=True)
    assert "no such operator (up to 3 keys, 50 bytes" in caplog.text
    assert "4 records are on their way to operator 'old'" in caplog.text
    left = restorable_parts(found, now)
    assert left.operators == {"n"}
    assert not (left.cut.pieces or left.cut.notifications or left.cut.positions)


def test_a_new_operator_starts_empty() -> None:
    now = plan("n", "new")
    found = restorable_parts(checkpoint(manifest("n")), now)
    expect_fits(found, now)
    assert restorable_parts(found, now) == found


@pytest.mark.parametrize("length", [1, 5, 40])
def test_a_record_that_is_cut_short_is_refused_in_a_sentence(length: int) -> None:
    data = checkpoint(manifest("n")).to_bytes()[:length]
    with pytest.raises(MeanderError, match="format 'checkpoint': it cannot be read"):
        Checkpoint.from_bytes(data)


def test_what_is_known_by_its_place_alone_has_to_keep_it() -> None:
    """I5: a ruling of another source's would be taken for one of this."""
    flow = Flow("words", bins=1, delivery="exactly_once")
    for name in ("b", "a"):
        flow.source(ListSource([[(1, "a")]]), name=name).sink(ListSink())
    now = Plan(flow)
    groups = tuple(now.groups.names)
    assert renumbered(StartDecision(0, (ONE,), 1, 3), now) == [], "an older release has not said"
    assert renumbered(StartDecision(0, (ONE,), 1, 3, ("b",), groups), now) == [], (
        "one more is none's"
    )
    (said,) = renumbered(StartDecision(0, (ONE,), 1, 3, ("a", "b"), groups), now)
    assert said.startswith("sources were 'a', 'b', and are now 'b', 'a'")
    (said,) = renumbered(StartDecision(0, (ONE,), 1, 3, ("b",), (*groups, "n")), now)
    assert said.startswith("groups of operators that move together were")


def plan_with_ttl() -> Plan:
    flow = Flow("words", bins=1)
    words = flow.source(ListSource([[(1, "a")]])).key_by(lambda word: word)
    words.fold("n", lambda: 0, lambda n, word: (n, word), ttl=60).sink(ListSink())
    return Plan(flow)


def restorable(codec: str) -> Checkpoint:
    cut = Cut(members=(ONE,), owners=(ONE, ONE))
    return replace(checkpoint(manifest("n", codec)), cut=cut)


@pytest.mark.parametrize("codec", ["msgpack", "msgpack+ttl"])
def test_an_operator_may_gain_a_time_to_live(codec: str) -> None:
    expect_fits(restorable(codec), plan_with_ttl())


def test_an_operator_may_not_lose_its_time_to_live() -> None:
    with pytest.raises(
        SetupError, match=r"codec 'msgpack\+ttl', and the operator's is 'msgpack'"
    ) as raised:
        expect_fits(restorable("msgpack+ttl"), plan("n"))
    assert "a ttl where the name ends with '+ttl'" in str(raised.value)


def windowed(windows: Windows, fold: ColumnFold | None) -> Plan:
    flow = Flow("words", bins=1)
    keyed = flow.source(ListSource([[(1, "a")]])).key_by(lambda word: word)
    made = keyed.window("n", windows)
    results = made.fold(fold) if fold is not None else made.fold(int, lambda n, _: n + 1)
    results.sink(ListSink())
    return Plan(flow)


def codec_of(plan: Plan) -> str:
    (node,) = plan.keyed
    return node.codec_name


BEFORE = tumbling(60, late=10)


@pytest.mark.parametrize(
    ("windows", "fold"),
    [
        (tumbling(30, late=10), columns.count()), (tumbling(60), columns.count()),
        (tumbling(60, late=10, offset=5), columns.count()), (session(60), columns.count()),
        (hopping(60, every=30, late=10), columns.count()), (BEFORE, columns.sum()),
        (BEFORE, columns.max()), (BEFORE, None),
    ],
    ids=str,
)  # fmt: skip
def test_changed_windows_are_refused_with_both_definitions(
    windows: Windows, fold: ColumnFold | None
) -> None:
    before, after = windowed(BEFORE, columns.count()), windowed(windows, fold)
    found = replace(
        checkpoint(manifest("n", codec_of(before)), bins=1),
        cut=Cut(members=(ONE,), owners=(ONE, ONE)),
        space=after.flow.space,
    )
    expect_fits(found, before)
    with pytest.raises(SetupError) as raised:
        expect_fits(found, after)
    said = str(raised.value)
    had, has = (definition_of(codec_of(plan)) for plan in (before, after))
    assert had == "tumbling(60, late=10) with count() in columns"
    assert f"operator 'n' had {had}, and now has {has}" in said
    assert "give its windows another name" in said


def test_windows_in_place_of_another_operator_are_refused() -> None:
    after = windowed(BEFORE, columns.count())
    found = replace(
        checkpoint(manifest("n"), bins=1), cut=Cut(members=(ONE,), owners=(ONE, ONE)),
        space=after.flow.space,
    )  # fmt: skip
    with pytest.raises(SetupError, match="operator 'n' had no windows, and now has tumbling"):
        expect_fits(found, after)
