"""The documentation builds as a site, and a dead link or a missing anchor fails the build."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def build(project: Path, site: Path) -> subprocess.CompletedProcess[str]:
    """Build the site of a project as `make docs` does."""
    mkdocs = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(site)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(
        mkdocs, cwd=project, env=environment, timeout=200, capture_output=True, text=True,
        check=False,
    )  # fmt: skip


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    built = build(ROOT, tmp_path / "site")
    assert built.returncode == 0, built.stderr
    assert (tmp_path / "site" / "index.html").is_file()


@pytest.mark.parametrize("link", ["nowhere.md", "index.md#nowhere", "../README.md"])
def test_a_dead_link_fails_the_build(tmp_path: Path, link: str) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text(f"# Home\n\nSee [there]({link}).\n")
    config = (ROOT / "mkdocs.yml").read_text()
    (tmp_path / "mkdocs.yml").write_text(config[: config.index("\nnav:")] + "\n")
    built = build(tmp_path, tmp_path / "site")
    assert built.returncode != 0
    assert link in built.stderr
