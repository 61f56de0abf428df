"""A flow of files runs in this process: no broker, no Spark."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from meander import (
    Checkpointing,
    Context,
    DeadLetters,
    FileSink,
    FileSource,
    Flow,
    MeanderError,
    SetupError,
)
from meander.dataflow.api.stream import Stream

Result = tuple[str, int]


@pytest.fixture
def words(tmp_path: Path) -> Stream[str]:
    """A stream of four words."""
    (tmp_path / "lines.txt").write_text("to be\nor not\n")
    flow = Flow("words", checkpoints=Checkpointing(interval=0.01))
    return flow.source(FileSource(tmp_path / "lines.txt", value="str")).flat_map(str.split)


def flow_of(words: Stream[str]) -> Flow:
    assert isinstance(words._flow, Flow)
    return words._flow


def counted(words: Stream[str]) -> Stream[Result]:
    return words.key_by(len).fold("count", lambda: 0, lambda n, word: (n + 1, (word, n + 1)))


def written(folder: Path) -> list[object]:
    return [json.loads(line) for line in (folder / "part-0.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
def test_a_run_writes_each_result_once(tmp_path: Path, delivery: str) -> None:
    (tmp_path / "lines.txt").write_text("to be\nor not\n")
    flow = Flow("words", delivery=delivery)  # type: ignore[arg-type]
    words = flow.source(FileSource(tmp_path / "lines.txt", value="str")).flat_map(str.split)
    counted(words).sink(FileSink(tmp_path / "out"))
    result = flow.run(until_end=True)
    assert written(tmp_path / "out") == [["to", 1], ["be", 2], ["or", 3], ["not", 1]]
    assert (result.counters["read"], result.counters["written"]) == (2, 4)
    assert "2 read" in repr(result)


def test_a_stream_gives_its_first_values(words: Stream[str]) -> None:
    assert words.take(3) == ["to", "be", "or"]
    assert counted(words).take(10) == [("to", 1), ("be", 2), ("or", 3), ("not", 1)]


def test_a_stream_gives_its_values_alone(words: Stream[str], tmp_path: Path) -> None:
    counted(words).sink(FileSink(tmp_path / "out"))
    assert words.map(str.upper).take(1) == ["TO"]
    assert not (tmp_path / "out").exists()


def test_a_stream_behind_a_loop_gives_its_values(words: Stream[str]) -> None:
    def shorten(words: Stream[str]) -> tuple[Stream[str], Stream[str]]:
        more, done = words.map(lambda word: word[1:]).split(
            lambda word: "more" if word else "done", "more", "done"
        )
        return more, done

    assert words.iterate("shorten", shorten).take(9) == [""] * 4


def test_a_run_fires_timers_as_asked(words: Stream[str], tmp_path: Path) -> None:
    def wait(context: Context[int], n: int, word: str) -> int:
        context.timer(context.time_ms + 60_000)
        return n + 1

    def end(context: Context[int], n: int) -> int:
        context.emit(n)
        return n

    words.key_by(len).process("wait", lambda: 0, wait, end).sink(FileSink(tmp_path))
    for fires in (False, True):
        flow_of(words).run(until_end=True, fire_timers=fires)
        assert sorted(written(tmp_path)) == ([1, 3] if fires else [])  # type: ignore[type-var]


def test_the_end_by_a_key_keeps_what_is_written(words: Stream[str], tmp_path: Path) -> None:
    seen = list[str]()

    def interrupt(word: str) -> None:
        seen.append(word)
        if word == "not":
            raise KeyboardInterrupt

    words.inspect(interrupt).sink(FileSink(tmp_path))
    assert flow_of(words).run().counters["read"] == 2
    assert seen == ["to", "be", "or", "not"]


def fail(word: str) -> str:
    raise ValueError(word)


@pytest.mark.parametrize(
    ("end", "error"),
    [
        (lambda words: words.map(fail, on_error="fail").take(1), MeanderError),
        (lambda words: words.map(fail).take(1), SetupError),
        (lambda words: words.take(0), SetupError),
    ],
)
def test_a_take_that_gives_nothing_says_why(
    words: Stream[str], end: Callable[[Stream[str]], object], error: type[MeanderError]
) -> None:
    with pytest.raises(error):
        end(words)


@pytest.fixture
def orders(tmp_path: Path) -> Stream[dict[str, int]]:
    """A stream of three readable lines, and one that is not."""
    (tmp_path / "in.jsonl").write_text('{"n": 1}\noops\n{"n": 2}\n{"n": 3}\n')
    return Flow("orders").source(FileSource(tmp_path / "in.jsonl"))


def test_a_take_without_values_names_the_nearest_operator_first(
    orders: Stream[dict[str, int]],
) -> None:
    with pytest.raises(SetupError) as raised:
        orders.filter(lambda v: v["nope"] > 0).map(str).take(2)
    message = str(raised.value)
    assert message.startswith(
        "stream 'map': it gave no value, and operators gave dead letters"
        "\n  operator 'filter': 3 dead letters, the first: KeyError: 'nope'"
        "\n  operator 'source "
    )
    assert "in.jsonl': 1 dead letter, the first: it cannot be read: " in message


def test_a_take_with_values_warns_of_dead_letters(
    orders: Stream[dict[str, int]], caplog: pytest.LogCaptureFixture
) -> None:
    assert orders.map(lambda v: 6 // (v["n"] - 2), name="share").take(9) == [-6, 6]
    first, second = (one.getMessage() for one in caplog.records)
    assert first.startswith("dead_letters_given operator=share count=1 reason=")
    assert "ZeroDivisionError" in first
    assert "in.jsonl" in second and "count=1" in second


def test_a_run_gives_its_dead_letters(words: Stream[str], tmp_path: Path) -> None:
    words.map(fail, name="broken").sink(FileSink(tmp_path))
    result = flow_of(words).run(until_end=True)
    letters = result.dead_letters
    assert repr(result).endswith("; 4 dead letters>") and " 0 " not in repr(result)
    assert [(one.operator, one.value) for one in letters][:2] == [
        ("broken", "to"),
        ("broken", "be"),
    ]


def test_a_dead_letter_names_the_file_of_its_record(tmp_path: Path) -> None:
    for name, line in ("1", "7"), ("2", "{oops"):
        (tmp_path / f"{name}.jsonl").write_text(f"{line}\n")
    numbers = Flow("numbers").source(FileSource(f"{tmp_path}/*.jsonl"))
    numbers.map(fail, name="broken").sink(FileSink(tmp_path / "out"))
    letters = flow_of(numbers).run(until_end=True).dead_letters
    assert {(one.value, Path(one.partition_name).name) for one in letters} == {
        (7, "1.jsonl"), (b"{oops", "2.jsonl")
    }  # fmt: skip


def test_a_flow_with_too_many_dead_letters_fails(tmp_path: Path) -> None:
    (tmp_path / "lines.txt").write_text("a\n" * 5)
    flow = Flow("broken", dead_letters=DeadLetters(limit=2, per=60))
    lines = flow.source(FileSource(tmp_path / "lines.txt", value="str"))
    lines.map(fail).sink(FileSink(tmp_path))
    with pytest.raises(MeanderError, match="dead letters"):
        flow.run(until_end=True)
