"""Options of `meander run` from the settings of a flow: their order, their values, their errors."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import typer
from rich.console import Console
from typer.core import TyperCommand, TyperGroup, TyperOption
from typer.testing import CliRunner

from meander.app.cli.flow_options import OTHERS, options_of
from meander.app.cli.main import app
from meander.app.cli.options import FlowConnection
from meander.app.common.output import CommandOutput
from meander.app.config.options import Options
from meander.app.driver import driver
from meander.app.driver.loop import FlowResult
from meander.app.driver.workers import spark_launcher
from meander.app.loading.flow_code import LoadedFlow

FLOW = """
from pathlib import Path
from meander import Flow, KafkaSink, KafkaSource

with Path("loads").open("a") as loads:
    loads.write("loaded\\n")
flow = Flow("counts")
flow.source(KafkaSource("lines", value="str")).sink(KafkaSink("counts", value="str"))
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("counts.py").write_text(FLOW)
    return tmp_path


def command_of_run() -> TyperCommand:
    root = typer.main.get_command(app)
    assert isinstance(root, TyperGroup)
    run = root.commands["run"]
    assert isinstance(run, TyperCommand)
    return run


RUN = options_of(command_of_run())


class Started:
    """What `meander run` would start."""

    master: str
    options: Options
    flow: str


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Started]:
    """Run the command up to the start of its driver."""
    started = Started()

    @contextmanager
    def context(master: str, *_: object) -> Iterator[None]:
        yield

    def expect_slots(master: str, *_: object) -> None:
        started.master = master

    def start(flow: LoadedFlow, options: Options, *_: Any) -> FlowResult:
        started.options, started.flow = options, flow.flow.name
        return FlowResult({}, [], 0.0, None, "counts", 1)

    monkeypatch.setattr(spark_launcher, "spark_context", context)
    monkeypatch.setattr(spark_launcher, "expect_slots", expect_slots)
    monkeypatch.setattr(driver, "run", start)

    def call(*words: str, code: int = 0) -> Started:
        found = CliRunner().invoke(app, ["run", "counts.py", "--bootstrap", "a:1", *words])
        assert found.exit_code == code, found.output
        return started

    return call


def refusal(*words: str) -> str:
    """Return the sentence with which the command refuses to start."""
    found = CliRunner().invoke(app, ["run", "counts.py", *words])
    assert found.exit_code == 2
    return found.stderr.strip()


def settings(text: str) -> None:
    Path("meander.toml").write_text(text)


def test_the_command_line_overrides_the_environment_the_flow_all_flows_and_the_default(
    run: Callable[..., Started], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run().options.workers == 2
    settings("[flow]\nworkers = 3\n[flow.other]\nworkers = 9\n")
    assert run().options.workers == 3
    settings("[flow]\nworkers = 3\n[flow.counts]\nworkers = 4\n")
    assert run().options.workers == 4
    monkeypatch.setenv("MEANDER_FLOW__WORKERS", "5")
    assert run().options.workers == 5
    assert run("--workers", "2").options.workers == 2, "also where it names the default"


def test_settings_are_typed_as_options_are(run: Callable[..., Started]) -> None:
    settings(
        "[flow.counts]\n"
        'master = "local[7]"\n'
        "metrics = false\n"
        "until_end = true\n"
        "restart_backoff = 2\n"
        "start = 2026-01-02T03:04:05Z\n"
        'policy = ["ds2", "skew:threshold=2"]\n'
        'prefix = "team-a."\n'
        "wait = true\n"
    )
    started = run()
    options = started.options
    assert started.master == "local[7]"
    assert (options.metrics_port, options.until_end, options.wait) == (None, True, True)
    assert options.restart_backoff == 2.0
    assert options.start == "2026-01-02T03:04:05+00:00"
    assert options.policies == ("ds2", "skew:threshold=2")
    assert options.prefix == "team-a."
    assert run("--metrics", "--no-wait").options.metrics_port == 0
    assert run("--prefix", "").options.prefix == ""


def test_a_setting_decides_the_exit_code_after_dead_letters(run: Callable[..., Started]) -> None:
    run()
    settings("[flow.counts]\nfail_on_dead_letters = true\n")
    run(code=1)


def test_the_flow_that_settings_concern_is_loaded_once(run: Callable[..., Started]) -> None:
    settings("[flow.counts]\nworkers = 4\n")
    assert run().flow == "counts"
    assert Path("loads").read_text() == "loaded\n"


def test_each_option_of_a_run_is_a_setting_or_says_why_not() -> None:
    names = {
        max(one.opts, key=len).removeprefix("--").replace("-", "_")
        for one in command_of_run().params
        if isinstance(one, TyperOption)
    }
    assert names - {"help"} == {*RUN} | {*OTHERS}
    assert len(RUN) > 20


def other_value(option: TyperOption) -> str | bool | int:
    """Return a value that an option takes and that is not its default."""
    if option.name in {"master", "prefix", "host", "metrics_host", "policy"}:
        return "other"
    if option.name in {"start", "on_stop"}:
        return {"start": "latest", "on_stop": "none"}[option.name]
    if option.default is None or isinstance(option.default, bool):
        return not option.default
    assert isinstance(option.default, int | float)
    return int(option.default) + 1


@pytest.mark.parametrize("name", RUN)
def test_each_setting_can_stand_in_the_table_of_a_flow(name: str) -> None:
    value = other_value(RUN[name])
    settings(f"[flow.counts]\n{name} = {json.dumps(value)}\n")
    shown = config("--flow", "counts")[name]
    assert shown == (str(value).lower(), "meander.toml [flow.counts]")


def config(*words: str) -> dict[str, tuple[str, str]]:
    """Return value and origin of each setting that `meander config` shows."""
    found = CliRunner().invoke(app, ["config", *words])
    assert found.exit_code == 0, found.output
    rows = map(json.loads, found.stdout.splitlines())
    return {row["name"]: (row["value"], row["from"]) for row in rows}


def test_config_shows_the_origin_of_each_setting_of_a_flow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings("[flow]\non_stop_timeout = 5.5\nhost = 'a'\n[flow.counts]\nhost = 'b'\n")
    monkeypatch.setenv("MEANDER_FLOW__POLICY", "ds2 skew")
    shown = config("--flow", "counts")
    assert [*shown] == [*RUN]
    assert shown["on_stop_timeout"] == ("5.5", "meander.toml [flow]")
    assert shown["host"] == ("b", "meander.toml [flow.counts]")
    assert shown["policy"] == ("ds2 skew", "environment MEANDER_FLOW__POLICY")
    assert shown["workers"] == ("2", "default")
    assert shown["master"] == ("", "default")
    assert config("--flow", "other")["host"] == ("a", "meander.toml [flow]")
    assert [*config()] == ["bootstrap.servers"]


def test_a_terminal_shows_the_table_of_a_setting_as_it_stands_in_the_file() -> None:
    console = Console(file=StringIO(), width=200)
    row = ["workers", "4", "meander.toml [flow.counts]"]
    CommandOutput(console, as_json=False).table("settings", ["name", "value", "from"], [row])
    assert isinstance(console.file, StringIO)
    assert "meander.toml [flow.counts]" in console.file.getvalue()


@pytest.mark.parametrize(
    ("line", "cause", "remedy"),
    [
        ("wrokers = 4", "no flow has such a setting", "write 'workers'"),
        ("colour = 4", "no flow has such a setting", "'meander config --flow NAME' lists"),
        ("from = 'v1'", "each start would go back to that checkpoint", "give --from to the one"),
        ("bootstrap = 'a:1'", "it belongs to all flows", "write it above the tables"),
        ("workers = 'four'", "it refuses 'four'", "'meander run --help' shows what --workers"),
        ("workers = 0", "it refuses '0'", "'meander run --help' shows what --workers takes"),
        ("workers = true", "it refuses 'true'", "'meander run --help' shows what --workers"),
        ("workers = 2.5", "it refuses '2.5'", "'meander run --help' shows what --workers"),
        ("workers = ['2']", "it takes one value, not a list", "write one value"),
        ("metrics = 'maybe'", "it refuses 'maybe'", "'meander run --help' shows what --metrics"),
        ("on_stop = 'rest'", "it refuses 'rest'", "'meander run --help' shows what --on-stop"),
    ],
)
@pytest.mark.parametrize("table", ["flow", "flow.counts"])
def test_an_unknown_setting_or_value_is_one_sentence(
    table: str, line: str, cause: str, remedy: str
) -> None:
    settings(f"[{table}]\n{line}\n")
    name = line.partition(" ")[0]
    said = refusal("--workers", "2")
    assert said.startswith(f"setting '{name}' (meander.toml [{table}]): {cause}")
    assert f"; {remedy}" in said
    assert "\n" not in said


def test_a_misspelt_variable_of_a_flow_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEANDER_FLOW__WROKERS", "4")
    assert refusal() == (
        "setting 'wrokers' (environment MEANDER_FLOW__WROKERS): no flow has such a setting; write"
        " 'workers'."
    )


def test_a_setting_of_another_flow_concerns_no_run(run: Callable[..., Started]) -> None:
    settings("[flow.other]\nwrokers = 4\n")
    assert run().options.workers == 2


def test_all_commands_about_a_flow_take_its_prefix_from_its_settings() -> None:
    settings("[flow.counts]\nprefix = 'team-a.'\n[flow]\nprefix = 'all.'\n")
    assert FlowConnection().topics_of("counts").control == "team-a.counts.control"
    assert FlowConnection().topics_of("other").control == "all.other.control"
    assert FlowConnection().prefix_of(None) == "all."
    assert FlowConnection(prefix="").topics_of("counts").control == "counts.control"
