"""Files that come beside a running flow reach its workers, and none of its files ever changes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from meander.app.loading import flow_code
from meander.app.loading.flow_code import FlowCode
from meander.app.loading.loader import add_files, load_flow
from meander.schemas.errors import MeanderError, SetupError


@pytest.fixture(autouse=True)
def leave_no_trace() -> Iterator[None]:
    path, modules = sys.path[:], sys.modules.copy()
    yield
    sys.path[:] = path
    for name in sys.modules.keys() - modules.keys():
        del sys.modules[name]


@pytest.fixture
def module(tmp_path: Path) -> Path:
    (tmp_path / "user").mkdir()
    module = tmp_path / "user" / "flow.py"
    module.write_text("from meander import Flow\nflow = Flow('f')\n")
    return module


def test_new_files_count_from_the_next_look_on(module: Path) -> None:
    code = FlowCode(module)
    (module.parent / "later.py").write_text("LIMIT = 3")
    assert (code.added, code.number) == ({}, 0)
    code.add_new_files()
    assert (code.added, code.number) == ({"later.py": b"LIMIT = 3"}, 1)
    assert code.source.files.keys() == {"flow.py", "later.py"}


def test_changed_and_deleted_files_count_as_they_were(module: Path) -> None:
    code = FlowCode(module)
    (module.parent / "later.py").write_text("LIMIT = 3")
    code.add_new_files()
    (module.parent / "later.py").write_text("LIMIT = 4")
    code.add_new_files()
    (module.parent / "later.py").unlink()
    code.add_new_files()
    assert code.added == {"later.py": b"LIMIT = 3"}
    assert code.source.files["later.py"] == b"LIMIT = 3"


def test_too_large_files_are_refused(module: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flow_code, "MAX_ADDED", 10)
    code = FlowCode(module)
    (module.parent / "later.py").write_text("LIMIT = 3 + 4")
    with pytest.raises(SetupError, match="restart the flow, or keep them in another folder"):
        code.add_new_files()
    assert code.added == {}


def test_a_worker_imports_files_that_have_come_since_it_loaded_the_flow(
    module: Path, tmp_path: Path
) -> None:
    """A module, and one in a package that is new as well."""
    folder = tmp_path / "worker"
    load_flow(FlowCode(module).source.unpack(folder))
    with pytest.raises(ModuleNotFoundError):
        import_module("later_rules")
    files = {"later_rules.py": b"LIMIT = 3", "later_pack/__init__.py": b"",
             "later_pack/one.py": b"LIMIT = 4"}  # fmt: skip
    add_files(folder, files)
    add_files(folder, {"later_rules.py": b"LIMIT = 5"})
    assert import_module("later_rules").LIMIT == 3
    assert import_module("later_pack.one").LIMIT == 4


@pytest.mark.parametrize("name", ["../outside.py", "/tmp/outside.py", "pack/../../outside.py"])
def test_no_file_leaves_the_folder(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "worker"
    folder.mkdir()
    with pytest.raises(MeanderError, match="lies outside its folder"):
        add_files(folder, {name: b""})
    assert not (tmp_path / "outside.py").exists()


def test_files_of_formats_travel_with_the_module_and_only_from_beside_it(tmp_path: Path) -> None:
    folder = tmp_path / "flow"
    (folder / "schemas").mkdir(parents=True)
    (folder / "flow.py").write_text("")
    (folder / "schemas/order.avsc").write_text("{}")
    (tmp_path / "other.avsc").write_text("{}")
    code = FlowCode(folder / "flow.py")
    code.add_beside([folder / "schemas/order.avsc"])
    assert code.source.files == {"flow.py": b"", "schemas/order.avsc": b"{}"}
    with pytest.raises(SetupError, match="other.avsc: it lies outside .*flow, so no worker gets"):
        code.add_beside([tmp_path / "other.avsc"])
