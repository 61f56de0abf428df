"""Every fenced block of the README and the documents runs: each language has a rule here or, for
console blocks, in `tests/integration/test_doc_commands.py`."""

from __future__ import annotations

import ast
import importlib
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import certifi
import pytest
from typer.testing import CliRunner

import meander
import meander.testing
from meander import Flow
from meander.app.cli.main import app
from meander.app.cli.plan_file import read_document
from meander.app.config.settings import Settings
from meander.schemas.control import CommandError, parse_command
from meander.testing import TestFlow
from tests.support.doc_blocks import (
    ROOT,
    Block,
    all_blocks,
    blocks,
    commands,
    pages,
    scripts,
    tree_of,
)

PYTHON = [page for page in pages() if any(b.language == "python" for b in blocks(page))]
SHARED = "docs/quickstart.md"
"""The page whose files other pages use."""
DRAWN = {"docs/architecture.md"}
"""Pages that may show drawings in characters."""
EXAMPLES = "docs/examples.md"
"""The page of the files in `examples`."""


def of_language(language: str) -> list[Block]:
    return [block for block in all_blocks() if block.language == language]


# -- Python


def test_examples_import_public_names_alone() -> None:
    faces = {"meander": meander.__all__, "meander.testing": meander.testing.__all__}
    wrong = [
        f"{block}: {module} has no public {name.name}"
        for block in of_language("python")
        for node in ast.walk(ast.parse(block.text))
        if isinstance(node, ast.ImportFrom) and (module := node.module or "").startswith("meander")
        for name in node.names
        if name.name not in faces.get(module, ())
    ]
    assert wrong == []


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder whose modules can be imported while the test lasts."""
    before = dict(sys.modules)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in {file.stem for file in tmp_path.glob("*.py")} & sys.modules.keys():
        del sys.modules[name]
        if name in before:
            sys.modules[name] = before[name]


def run_page(page: str, folder: Path) -> int:
    """Import the files of a page, run its tests and its other Python blocks, and run each flow that
    they define; the number of tests and flows."""
    own = [block for block in blocks(page) if block.language == "python"]
    for block in [*blocks(SHARED), *own]:
        if block.file is not None:
            (folder / block.file).write_text(block.text)
            # An example of this name may have been imported.
            sys.modules.pop(block.file.removesuffix(".py"), None)
    flows, tests, names = list[Flow](), list[Callable[[], None]](), dict[str, object]()
    for block in own:
        if block.file in scripts(blocks(page)):
            compile(block.text, str(block), "exec")  # A command of the page runs it.
            continue
        if block.file is not None:
            names_here = vars(importlib.import_module(block.file.removesuffix(".py")))
        else:
            exec(compile(block.text, str(block), "exec"), names)
            names_here = names
        flows += [one for one in names_here.values() if isinstance(one, Flow) and one not in flows]
        tests += [
            value
            for name, value in names_here.items()
            if name.startswith("test_") and callable(value)
        ]
    for test in tests:
        test()
    with_sinks = [flow for flow in flows if flow.nodes]
    for flow in with_sinks:
        with TestFlow(flow, topics=["returns-de"]) as run:
            run.run()
    return len(tests) + len(flows)


@pytest.mark.parametrize("page", PYTHON)
def test_the_python_blocks_of_a_page_run(page: str, folder: Path) -> None:
    if page == EXAMPLES:
        for schema in (ROOT / "examples").glob("*.avsc"):
            shutil.copy(schema, folder)
    assert run_page(page, folder) > 0


def test_the_page_of_the_examples_shows_each_example_as_it_is() -> None:
    shown = {block.file: block.text for block in blocks(EXAMPLES)}
    files = {
        file.name: f"# {file.name}\n{file.read_text()}" for file in (ROOT / "examples").glob("*.py")
    }
    assert shown == files


def test_each_example_has_a_test() -> None:
    names = {file.stem for file in (ROOT / "examples").glob("*.py")}
    flows = {name for name in names if not name.startswith("test_")}
    assert len(flows) == 8
    assert names == flows | {f"test_{name}" for name in flows}


# -- other languages


@pytest.mark.parametrize("block", of_language("json"), ids=str)
def test_a_json_block_is_a_command(block: Block) -> None:
    data = block.text.encode()
    assert b'"meander": "command"' in data
    parse_command(data, bins=256)


def test_a_json_block_with_an_unknown_field_fails() -> None:
    with pytest.raises(CommandError):
        parse_command(b'{"meander": "command", "type": "stop", "id": "s1", "now": true}', bins=256)


@pytest.fixture(scope="module")
def key_pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A private key and its certificate, as PEM."""
    folder = tmp_path_factory.mktemp("keys")
    files = ["-keyout", str(folder / "key"), "-out", str(folder / "certificate")]
    request = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=me"]
    subprocess.run([*request, *files], check=True, capture_output=True, timeout=60)
    return (folder / "key").read_text(), (folder / "certificate").read_text()


@pytest.mark.parametrize("block", of_language("toml"), ids=str)
def test_a_toml_block_holds_settings(
    block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key_pair: tuple[str, str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("ca.pem").write_text(Path(certifi.where()).read_text())
    Path("client.key").write_text(key_pair[0])
    Path("client.pem").write_text(key_pair[1])
    Path("meander.toml").write_text(block.text)
    settings = Settings.load(None, {"MEANDER_KAFKA__SASL__PASSWORD": "secret"})
    origins = {name: origin for name, _, origin in settings.shown()}
    del origins["sasl.password"]
    assert set(origins.values()) == {"meander.toml"}
    for flow in tomllib.loads(block.text).get("flow", {}):
        # This checks the settings of all flows, and of that one where it has a table.
        shown = CliRunner().invoke(app, ["config", "--flow", flow])
        assert shown.exit_code == 0, shown.output


@pytest.mark.parametrize("block", of_language("yaml"), ids=str)
def test_a_yaml_block_is_a_plan(block: Block, tmp_path: Path) -> None:
    (tmp_path / "plan.yaml").write_text(block.text)
    assert read_document(tmp_path / "plan.yaml").sections


@pytest.mark.parametrize("block", of_language("mermaid"), ids=str)
def test_a_mermaid_block_is_a_diagram(block: Block) -> None:
    kind, *lines = block.text.splitlines()
    wrong = flowchart_faults(lines) if kind.startswith("flowchart") else sequence_faults(lines)
    assert kind in {"flowchart LR", "flowchart TB", "sequenceDiagram"}
    assert wrong == []


NODE = r"""\w+(?:\[\("?[^"()]+"?\)\]|\["?[^"\[\]]+"?\])?"""
ARROW = r"""(?:-->|==>|<-->|-\.->|-\. [^.]+ \.->|== [^=]+ ==>|-- [^-][^>]*? -->)"""
CHAIN = re.compile(rf"{NODE}(?: & {NODE})*(?: {ARROW} {NODE}(?: & {NODE})*)*")
MESSAGE = re.compile(r"(\w+)->>(\w+): \S.*|Note over (\w+): \S.*|participant (\w+) as \S.*")


def flowchart_faults(lines: list[str]) -> list[str]:
    """Return the lines of a flowchart that are neither nodes, edges nor subgraphs."""
    found, open_subgraphs = list[str](), 0
    for line in map(str.strip, lines):
        if re.fullmatch(r"subgraph \w+\[[^\]]+\]", line):
            open_subgraphs += 1
        elif line == "end":
            open_subgraphs -= 1
        elif not CHAIN.fullmatch(line):
            found.append(line)
    return found if open_subgraphs == 0 else [*found, "a subgraph stays open"]


def sequence_faults(lines: list[str]) -> list[str]:
    """Return the lines of a sequence diagram that are no message, note or participant, or name a
    participant that is not declared."""
    found, known = list[str](), set[str]()
    for line in map(str.strip, lines):
        message = MESSAGE.fullmatch(line)
        if message is None:
            found.append(line)
        elif message[4]:
            known.add(message[4])
        elif not {name for name in message.groups()[:3] if name} <= known:
            found.append(line)
    return found


@pytest.mark.parametrize("line", ["A[open --> B", "A -> B", "A --> B[", "end"])
def test_a_broken_flowchart_is_found(line: str) -> None:
    assert flowchart_faults([line]) != []


@pytest.mark.parametrize("line", ["A->B: x", "A->>B: x", "Note over A"])
def test_a_broken_sequence_is_found(line: str) -> None:
    assert sequence_faults(["participant A as a", line]) != []


def test_a_block_without_a_language_is_a_tree_or_a_drawing() -> None:
    for block in of_language(""):
        page = f"## The tree\n\n```\n{block.text}```\n"
        assert block.page in DRAWN or tree_of(page) != [], block


# -- nothing is left out


def test_each_block_has_a_language_that_a_rule_runs() -> None:
    ruled = {"python", "json", "toml", "yaml", "mermaid", "console", ""}
    assert [str(block) for block in all_blocks() if block.language not in ruled] == []


def test_console_blocks_hold_commands() -> None:
    for block in of_language("console"):
        assert commands(block) != [], block


@pytest.mark.parametrize(
    "text",
    ["```python\nx = 1\n", "```console\nno prompt\n```\n"],
)
def test_a_malformed_block_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"x\.md:1"):
        [commands(block) for block in blocks("x.md", text)]


# -- links, as a viewer of plain Markdown follows them

LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)")


def slug(heading: str) -> str:
    """Return the anchor of a heading.

    >>> slug("Rescale, rebalance and `migrate`")
    'rescale-rebalance-and-migrate'
    """
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")


def anchors(page: Path) -> set[str]:
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    return {slug(heading) for heading in re.findall(r"^#+ (.*)$", text, re.MULTILINE)}


@pytest.mark.parametrize("page", [*pages(), "CONTRIBUTING.md", "CHANGELOG.md"])
def test_each_link_leads_to_a_file_and_a_heading(page: str) -> None:
    dead = []
    for groups in LINK.findall((ROOT / page).read_text()):
        link = "".join(groups)
        if re.match(r"https?://", link):
            continue
        path, _, anchor = link.partition("#")
        target = (ROOT / page).parent / path if path else ROOT / page
        if not target.is_file() or (anchor and anchor not in anchors(target)):
            dead.append(link)
    assert dead == []


def test_the_readme_has_at_most_120_lines() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120
