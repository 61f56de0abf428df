"""Settings of a flow's runs: the environment over its table over that of all flows, each with its
origin."""

from __future__ import annotations

from pathlib import Path

import pytest

from meander.app.config.flow_settings import flow_settings
from meander.app.config.settings import Settings
from meander.schemas.errors import SetupError


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "meander.toml"
    path.write_text(
        'bootstrap = "file:1"\n'
        "[flow]\n"
        "workers = 2\n"
        "heartbeat_timeout = 20\n"
        "until_end = true\n"
        "[flow.counts]\n"
        "workers = 4\n"
        "start = 2026-01-02T03:04:05Z\n"
        'policy = ["ds2", "skew"]\n'
        "[flow.other]\n"
        "workers = 9\n"
    )
    return path


def test_the_environment_overrides_a_flow_which_overrides_all_flows(file: Path) -> None:
    found = flow_settings(file, {"MEANDER_FLOW__UNTIL_END": "false", "HOME": "/"}, "counts")

    assert {name: (one.value, one.origin) for name, one in found.items()} == {
        "workers": ("4", f"{file} [flow.counts]"),
        "heartbeat_timeout": ("20", f"{file} [flow]"),
        "until_end": ("false", "environment MEANDER_FLOW__UNTIL_END"),
        "start": ("2026-01-02T03:04:05+00:00", f"{file} [flow.counts]"),
        "policy": (["ds2", "skew"], f"{file} [flow.counts]"),
    }


def test_a_flow_without_a_table_has_the_settings_of_all_flows(file: Path) -> None:
    for flow in "unknown", "workers", None:
        found = flow_settings(file, {}, flow)
        assert {name: one.value for name, one in found.items()} == {
            "workers": "2", "heartbeat_timeout": "20", "until_end": "true",
        }  # fmt: skip


def test_settings_of_flows_are_no_settings_for_kafka(file: Path) -> None:
    assert Settings.load(file, {"MEANDER_FLOW__WORKERS": "3"}).shown() == [
        ("bootstrap.servers", "file:1", str(file))
    ]


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("workers = {most = 3}", "no setting of a flow is such a table"),
        ("policy = [1]", "no setting of a flow is such a list"),
        ("start = 2026-01-02", "no setting of a flow is such a date"),
    ],
)
def test_a_value_of_no_setting_is_one_sentence(tmp_path: Path, line: str, cause: str) -> None:
    path = tmp_path / "meander.toml"
    path.write_text(f"[flow.counts]\n{line}\n")
    name = line.partition(" ")[0]
    with pytest.raises(SetupError) as raised:
        flow_settings(path, {}, "counts")
    assert str(raised.value).startswith(f"setting '{name}' ({path} [flow.counts]): {cause}; write")
