"""What a record carries: its metadata, the streams and topics that it comes from, and the key,
headers, partition, topic and timestamp of its result."""

from __future__ import annotations

from typing import Any

import pytest

from meander import Flow, KafkaSink, KafkaSource, Record, SetupError
from meander.connectors.kafka.source.source import source_topics
from meander.connectors.testing.in_memory import TopicRecord
from meander.dataflow.api.plan import Plan
from meander.state.encoding import codec
from meander.testing import At, Control, Join, TestFlow

AT = 1_357_034_400_000


def through(source: KafkaSource, sink: KafkaSink) -> Flow:
    flow = Flow("f", bins=2)
    flow.source(source).sink(sink)
    return flow


def written(sink: KafkaSink, *values: object, partitions: int = 2) -> list[TopicRecord]:
    with TestFlow(through(KafkaSource("in"), sink), partitions=partitions) as run:
        run.feed("in", *values, ms=AT)
        run.run()
        assert not run.dead_letters
        return run.records("out")


# -- metadata


def test_a_function_sees_the_metadata_of_a_record_before_and_behind_an_exchange() -> None:
    seen: list[Record[dict[str, int]]] = []

    def step(count: int, record: Record[dict[str, int]]) -> tuple[int, int]:
        seen.append(record)
        return count + 1, count + 1

    flow = Flow("f", bins=2)
    records = flow.source(KafkaSource[Record[dict[str, int]]]("in", metadata=True))
    counts = records.filter(lambda record: record.offset > 0).key_by(lambda record: record.key)
    counts.fold("n", int, step).sink(KafkaSink("out"))
    with TestFlow(flow) as run:
        run.feed("in", {"n": 1}, {"n": 2}, key="a", ms=AT, partition=1, headers=[("trace", "t")])
        run.run()
    assert seen == [Record({"n": 2}, "a", "in", 1, 1, AT, (("trace", b"t"),))]


def test_a_record_comes_back_from_bytes_equal_in_value_and_type() -> None:
    record = Record[Any]([1, (2, b"x")], None, "in", 0, 7, -1, (("a", None), ("a", b"")))
    found = codec.decode_strict(codec.encode({"last": record}))
    assert found == {"last": record}
    assert isinstance(found, dict)
    assert type(found["last"]) is Record
    assert not codec.is_immutable(record) and codec.is_immutable(record._replace(value=1))
    assert codec.decode(codec.encode_key(record._replace(value=-0.0))) == record._replace(value=0.0)
    assert codec.encode(record) != codec.encode(tuple(record))


@pytest.mark.parametrize("key", ["str", lambda data: data.decode()], ids=["built-in", "function"])
def test_the_key_of_a_record_is_decoded_as_asked(key: Any) -> None:
    flow = Flow("f")
    flow.source(KafkaSource("in", metadata=True, key=key)).map(lambda r: r.key).sink(
        KafkaSink("out")
    )
    with TestFlow(flow) as run:
        run.feed("in", 1, key=b"a")
        run.run()
        assert run.values("out") == ["a"]


# -- streams and topics


def test_merged_streams_without_keys_are_one_in_the_order_of_time() -> None:
    flow = Flow("f")
    streams = [flow.source(KafkaSource(topic), topic) for topic in ("a", "b", "c")]
    flow.merge(*streams).map(lambda v: v * 10).sink(KafkaSink("out"))
    with TestFlow(flow, workers=3, seed=5) as run:
        for n, topic in enumerate("cab"):
            run.feed(topic, n, ms=AT + n)
        run.run()
        assert run.values("out") == [0, 10, 20]


def test_merged_streams_with_keys_keep_them() -> None:
    flow = Flow("f", bins=3)
    streams = [flow.source(KafkaSource(topic), topic).key_by(lambda v: v % 3) for topic in "ab"]
    merged = flow.merge(*streams, name="both")
    merged.fold("sum", int, lambda s, v: (s + v, s + v)).sink(KafkaSink("out"))
    with TestFlow(flow, workers=2, seed=1) as run:
        run.feed("a", *range(10))
        run.feed("b", *range(10))
        run.run()
        assert run.states("sum") == {0: 36, 1: 24, 2: 30}


@pytest.mark.parametrize("seed", range(8))
def test_merged_streams_apply_in_the_order_of_time_whatever_moves(seed: int) -> None:
    """I3: what a single thread would give, with records of one time on both branches."""
    flow = Flow("f", bins=3, delivery="exactly_once")
    values = flow.source(KafkaSource(["a", "b"]))
    even, odd = values.split(lambda v: "odd" if v % 2 else "even", "even", "odd")
    merged = flow.merge(even, odd.flat_map(lambda v: [v * 10]))
    keyed = merged.key_by(lambda v: v % 3)
    keyed.fold("seen", list, lambda seen, v: ([*seen, v], 0)).sink(KafkaSink("out"))
    faults = [
        At(Control({"type": "migrate", "id": f"m{n}", "bins": "all", "worker": n % 2}), records=at)
        for n, at in enumerate((5, 25, 50))
    ]
    wanted: dict[object, object] = {0: [], 1: [], 2: []}
    with TestFlow(flow, workers=2, seed=seed, faults=[*faults, At(Join(), records=30)]) as run:
        for n in range(80):
            run.feed("ab"[n // 3 % 2], n, ms=AT + n, partition=n % 2)
            value = n * 10 if n % 2 else n
            seen = wanted[value % 3]
            assert isinstance(seen, list)
            seen.append(value)
        run.run()
        assert run.states("seen") == wanted


def test_a_stream_merged_with_itself_gives_each_record_twice() -> None:
    flow = Flow("f", delivery="exactly_once")
    values = flow.source(KafkaSource("in"))
    flow.merge(values, values.map(lambda v: -v), values).sink(KafkaSink("out"))
    with TestFlow(flow) as run:
        run.feed("in", 1, 2)
        run.run()
        assert sorted(map(int, map(str, run.values("out")))) == [-2, -1, 1, 1, 2, 2]


@pytest.mark.parametrize(
    ("says", "merge"),
    [
        ("it is to merge []; give it streams", lambda flow, a, b: flow.merge()),
        ("it is to merge [5]; give it streams", lambda flow, a, b: flow.merge(5)),
        ("have keys, and others have none; call", lambda flow, a, b: flow.merge(a, b.key_by(int))),
        ("it reads 'source' of another flow", lambda flow, a, b: Flow("g").merge(a)),
    ],
)
def test_streams_that_do_not_merge_are_refused(says: str, merge: Any) -> None:
    flow = Flow("f")
    a, b = (flow.source(KafkaSource(topic)) for topic in "ab")
    with pytest.raises(SetupError) as refused:
        merge(flow, a, b)
    assert says in str(refused.value)


@pytest.mark.parametrize(
    "source",
    [KafkaSource(["b", "a"], metadata=True), KafkaSource(pattern="[ab]", metadata=True)],
    ids=["list", "pattern"],
)
@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
def test_several_topics_are_one_stream(source: KafkaSource, delivery: Any) -> None:
    flow = Flow("f", delivery=delivery)
    flow.source(source, "all").map(lambda r: [r.topic, r.value]).sink(KafkaSink("out"))
    with TestFlow(flow, topics=["a", "b", "other"]) as run:
        for n, topic in enumerate("abab"):
            run.feed(topic, n, ms=AT + n, partition=n % 2)
        run.run()
        assert run.values("out") == [["a", 0], ["b", 1], ["a", 2], ["b", 3]]
        with pytest.raises(SetupError, match="topic 'other': the flow does not use it"):
            run.values("other")


def test_a_source_of_several_topics_has_one_name_for_each_partition() -> None:
    flow = Flow("f")
    flow.source(KafkaSource(["x", "y"]), "all").sink(KafkaSink("out"))
    flow.source(KafkaSource("z"), "one").sink(KafkaSink("out"))
    assert source_topics(Plan(flow).sources) == {"all:x": "x", "all:y": "y", "one": "z"}


def test_ends_of_several_topics_are_values() -> None:
    names = ["a", "b"]
    source, sink = KafkaSource(names), KafkaSink(str, topics=names)
    names.append("c")
    assert hash(source) == hash(KafkaSource(["a", "b"])) and source == KafkaSource(("a", "b"))
    assert sink == KafkaSink(str, topics=("a", "b")) and hash(sink)


def test_an_operator_may_not_have_the_name_of_the_source_of_a_topic() -> None:
    flow = Flow("f")
    flow.source(KafkaSource(["x"]), "all").map(str, name="all:x").sink(KafkaSink("out"))
    with pytest.raises(SetupError, match="operator 'all:x': source 'all' has a source of this"):
        Plan(flow)


def test_a_new_topic_of_a_pattern_comes_behind_the_sources_that_have_a_number() -> None:
    flow = Flow("f")
    flow.source(KafkaSource(pattern="o-.*"), "all").sink(KafkaSink("out"))
    flow.source(KafkaSource("z"), "one").sink(KafkaSink("out"))
    names = ["all:o-m", "one", "all:o-a"]
    plan = Plan(flow, names)
    assert [one.name for one in plan.sources] == names
    assert [plan.origin(one) for one in plan.sources] == [0, 1, 2]


def test_a_pattern_without_a_topic_is_refused_at_the_start() -> None:
    flow = through(KafkaSource(pattern="o-.*"), KafkaSink("out"))
    with pytest.raises(SetupError, match=r"source 'source': no topic matches its pattern 'o-"):
        Plan(flow, ["source:other"])


def test_a_loop_behind_several_topics_reads_them_all() -> None:
    flow = Flow("f")

    def halve(values: Any) -> Any:
        return values.map(lambda v: v // 2).split(
            lambda v: "again" if v > 1 else "done", "again", "done"
        )

    flow.source(KafkaSource(["a", "b"])).iterate("halve", halve).sink(KafkaSink("out"))
    with TestFlow(flow) as run:
        run.feed("a", 9)
        run.feed("b", 40)
        run.run()
        assert run.values("out") == [1, 1]


# -- results


def test_a_results_timestamp_is_its_logical_time_or_as_asked_the_clock() -> None:
    (logical,) = written(KafkaSink("out"), 1)
    (wall,) = written(KafkaSink("out", time="wall"), 1)
    assert logical.ms == AT
    assert wall.ms > AT


def test_functions_of_the_value_give_key_headers_and_partition() -> None:
    sink = KafkaSink(
        "out",
        key=lambda v: v["key"],
        headers=lambda v: {"n": str(v["n"]), "none": None},
        partition=lambda v: v["n"] % 3,
        origin=False,
    )
    values = [{"key": key, "n": n} for n, key in enumerate(["a", "raw", None, ["x", 1]])]
    records = written(sink, *values, partitions=3)
    assert {record.key for record in records} == {b'["x",1]', b"a", b"raw", None}
    for record in records:
        headers = dict(record.headers)
        n = int(headers["n"] or 0)
        assert headers == {"n": str(n), "none": None}
        assert record.partition == n % 3


def test_headers_of_ones_own_stand_before_those_of_the_origin() -> None:
    (record,) = written(KafkaSink("out", headers=lambda v: [("a", b"1"), ("a", b"2")]), 5)
    assert [*record.headers][:3] == [("a", b"1"), ("a", b"2"), ("meander.time", b"%d" % AT)]


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
@pytest.mark.parametrize("topics", ["out-..", ["out-de", "out-us"]], ids=["pattern", "list"])
def test_a_function_chooses_the_topic_of_each_result(topics: Any, delivery: Any) -> None:
    flow = Flow("f", delivery=delivery)
    sink = KafkaSink(lambda v: f"out-{v}" if v != "none" else None, topics=topics)  # type: ignore[arg-type,return-value]
    flow.source(KafkaSource("in")).sink(sink)
    with TestFlow(flow) as run:
        run.feed("in", "de", "us", "france", "de", "none", ms=AT)
        run.run()
        assert run.values("out-de") == ["de", "de"]
        assert run.values("out-us") == ["us"]
        outside, untold = (letter.reason for letter in run.dead_letters)
    assert f"ValueError: topic 'out-france' is none of {sink.topics!r}" in outside
    assert "have the sink's topic function return one of its topics" in outside
    assert "TypeError: a topic is text, not None" in untold


WRONG: dict[str, tuple[KafkaSink, str]] = {
    "partition": (KafkaSink("out", partition=lambda v: -1), "a partition is a number from 0 on"),
    "a partition that is none": (KafkaSink("out", partition=lambda v: 9), "is for partition 9;"),
    "headers": (KafkaSink("out", headers=lambda v: {"a": 1}), "('a', 1) is no header, a name"),  # type: ignore[dict-item]
    "key": (KafkaSink("out", key=lambda v: object()), "the key of the result from partition 0"),
}


@pytest.mark.parametrize(("sink", "says"), WRONG.values(), ids=WRONG)
def test_a_result_whose_function_gives_no_such_part_is_a_dead_letter(
    sink: KafkaSink, says: str
) -> None:
    with TestFlow(through(KafkaSource("in"), sink)) as run:
        run.feed("in", 1)
        run.run()
        (letter,) = run.dead_letters
    assert letter.operator == "sink" and says in letter.reason
