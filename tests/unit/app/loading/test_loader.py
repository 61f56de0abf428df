"""A flow's module travels whole, is loaded anew, and never meets another flow's namesakes."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from meander.app.loading import loader
from meander.app.loading.loader import collect, load_flow
from meander.schemas.errors import SetupError

FLOW = "from meander import Flow\nimport {module}\nflow = Flow({module}.NAME)\n"


@pytest.fixture(autouse=True)
def leave_no_trace() -> Iterator[None]:
    path, modules = sys.path[:], sys.modules.copy()
    yield
    sys.path[:] = path
    for name in sys.modules.keys() - modules.keys():
        del sys.modules[name]


def folder_with(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def a_flow(folder: Path, name: str) -> Path:
    """A flow that is called as the module beside it says."""
    near = {"flow.py": FLOW.format(module="near"), "near.py": f"NAME = {name!r}"}
    return folder_with(folder, near)


def test_modules_beside_a_flow_travel_and_import_where_they_arrive(tmp_path: Path) -> None:
    here = a_flow(tmp_path / "here", "near")
    source = collect(here / "flow.py")
    assert source.files.keys() == {"flow.py", "near.py"}

    there = source.unpack(tmp_path / "there")
    for file in here.iterdir():
        file.unlink()
    assert load_flow(there).name == "near"
    assert sys.modules["near"].__file__ == str(tmp_path / "there" / "near.py")


def test_packages_beside_a_flow_travel_whole_but_other_folders_stay(tmp_path: Path) -> None:
    travelling = {"flow.py", "pack/__init__.py", "pack/deep/inner.py", "pack/deep/table.csv"}
    staying = {"data/x.py", "pack/__pycache__/inner.pyc", "notes.txt"}
    here = folder_with(tmp_path / "here", dict.fromkeys(travelling | staying, ""))

    assert collect(here / "flow.py").files.keys() == travelling


def test_a_flow_inside_a_package_keeps_its_relative_imports(tmp_path: Path) -> None:
    text = "from meander import Flow\nfrom .near import NAME\nflow = Flow(NAME)\n"
    files = {"__init__.py": "", "flow.py": text, "near.py": "NAME = 'inside'"}
    here = folder_with(tmp_path / "pack", files)

    there = collect(here / "flow.py").unpack(tmp_path / "there")

    assert there == tmp_path / "there" / "pack" / "flow.py"
    assert load_flow(there).name == "inside"


def test_a_module_of_several_flows_is_loaded_by_the_name_of_one(tmp_path: Path) -> None:
    text = "from meander import Flow\none, two = Flow('a'), Flow('b')\n"
    here = folder_with(tmp_path / "here", {"flows.py": text})

    there = collect(here / "flows.py:b").unpack(tmp_path / "there")

    assert there == tmp_path / "there" / "flows.py:b"
    assert load_flow(there).name == "b"


@pytest.mark.parametrize(
    ("text", "name", "says"),
    [
        ("x = 1", "", "it defines no flow; assign a Flow at its top level"),
        ("one = two = Flow('a')", ":b", "it defines no flow of the name 'b'; name one: flows.py:a"),
        (
            "two, one = Flow('b'), Flow('a')",
            "",
            "defines 2 flows; name one: flows.py:a, flows.py:b",
        ),
        ("one, two = Flow('a'), Flow('a')", ":a", "2 flows of the name 'a'; give each flow a name"),
    ],
)
def test_a_module_without_the_one_flow_is_refused(
    tmp_path: Path, text: str, name: str, says: str
) -> None:
    folder_with(tmp_path, {"flows.py": f"from meander import Flow\n{text}\n"})
    with pytest.raises(SetupError, match=says):
        load_flow(tmp_path / f"flows.py{name}")


def test_two_flows_of_one_name_with_namesakes_beside_them_do_not_meet(tmp_path: Path) -> None:
    one, two = a_flow(tmp_path / "one", "one"), a_flow(tmp_path / "two", "two")
    assert [load_flow(f / "flow.py").name for f in (one, two, one)] == ["one", "two", "one"]


def test_a_changed_flow_is_loaded_again(tmp_path: Path) -> None:
    here = a_flow(tmp_path / "here", "a")
    assert load_flow(here / "flow.py").name == "a"
    (here / "near.py").write_text("NAME = 'later'")
    assert load_flow(here / "flow.py").name == "later"


@pytest.mark.parametrize("folder", ["", "pack/"])
@pytest.mark.parametrize("changed", ["flow.py", "near.py"])
def test_a_change_of_the_same_size_in_the_same_second_is_seen(
    tmp_path: Path, folder: str, changed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    near = "from . import near" if folder else "import near"
    flow = f"from meander import Flow\n{near}\nflow = Flow('old-' + near.NAME)\n"
    packages = {f"{folder}__init__.py": ""} if folder else {}
    files = {f"{folder}flow.py": flow, f"{folder}near.py": "NAME = 'old'"}
    root = folder_with(tmp_path, files | packages)
    assert load_flow(root / folder / "flow.py").name == "old-old"
    file = root / folder / changed
    written = file.stat()
    file.write_text(file.read_text().replace("'old", "'new"))
    os.utime(file, ns=(written.st_atime_ns, written.st_mtime_ns))
    expected = "new-old" if changed == "flow.py" else "old-new"
    assert load_flow(root / folder / "flow.py").name == expected


def test_loading_a_flow_leaves_what_was_imported_before_alone(tmp_path: Path) -> None:
    before = sys.modules["json"]
    files = {
        "flow.py": "from meander import Flow\nflow = Flow('x')",
        "json.py": "raise AssertionError('this is not ours')",
    }
    here = folder_with(tmp_path / "here", files)
    for _ in range(2):
        load_flow(here / "flow.py")
    assert sys.modules["json"] is before


def test_a_folder_that_is_too_large_to_travel_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loader, "MAX_BYTES", 1000)
    here = folder_with(tmp_path / "here", {"flow.py": "x = 1", "large.py": "#" * 1000})
    with pytest.raises(SetupError, match="put the flow into a folder of its own"):
        collect(here / "flow.py")


@pytest.mark.parametrize("call", ["os._exit(3)", "_exit(3)"])
def test_a_module_that_ends_the_process_is_an_error_with_a_sentence(
    tmp_path: Path, call: str
) -> None:
    file = tmp_path / "flow.py"
    file.write_text(f"import os\nfrom os import _exit\n{call}\n")
    end = os._exit
    with pytest.raises(SetupError, match=r"it ends the process when it is imported: os._exit\(3\)"):
        load_flow(file)
    assert os._exit is end


def test_a_child_process_of_a_module_may_end_itself(tmp_path: Path) -> None:
    file = tmp_path / "flow.py"
    file.write_text(
        "import os\nfrom meander import Flow\n"
        "child = os.fork() or os._exit(3)\n"
        "flow = Flow(str(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])))\n"
    )
    assert load_flow(file).name == "3"
