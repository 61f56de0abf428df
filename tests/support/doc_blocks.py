"""The fenced code blocks of the README and of the documents, as tests run them.

A block has the language of its fence. A Python block whose first line is `# name.py` is a file of
its page; the others of a page share one namespace. A YAML block is a file in the same way. A
console block holds commands behind `$ `, continued by a backslash, each with lines of its output.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
_FENCE = re.compile(r"^(?P<indent> *)(?P<fence>```+)(?P<language>\S*)(?P<rest>.*)$")
_FILE = re.compile(r"# ([\w-]+\.(?:py|yaml))\n")


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block of a page."""

    page: str
    line: int
    """Where its fence opens."""
    language: str
    text: str

    @property
    def file(self) -> str | None:
        """The file that a Python or YAML block names in its first line."""
        named = _FILE.match(self.text) if self.language in ("python", "yaml") else None
        return named and named[1]

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


@dataclass(frozen=True, slots=True)
class Command:
    """A command of a console block, and the lines of output that the page shows."""

    block: Block
    text: str
    output: tuple[str, ...]


def pages() -> list[str]:
    """Return the pages whose blocks are tested: the README and all documents."""
    documents = sorted((ROOT / "docs").rglob("*.md"))
    return ["README.md", *(path.relative_to(ROOT).as_posix() for path in documents)]


def blocks(page: str, text: str | None = None) -> list[Block]:
    """Return the blocks of a page in their order. Raises ValueError for a fence that stays open.

    >>> [block.language for block in blocks("x.md", "```python\\nx = 1\\n```\\n")]
    ['python']
    """
    found, opened, lines = list[Block](), None, list[str]()
    content = (ROOT / page).read_text() if text is None else text
    for number, line in enumerate(content.splitlines(), 1):
        fence = _FENCE.match(line)
        if opened is None:
            if fence:
                opened, lines = (number, fence), []
        elif fence and fence["fence"] == opened[1]["fence"] and not fence["language"]:
            body = "".join(f"{one}\n" for one in lines)
            found.append(Block(page, opened[0], opened[1]["language"], body))
            opened = None
        else:
            lines.append(line.removeprefix(opened[1]["indent"]))
    if opened is not None:
        raise ValueError(f"{page}:{opened[0]}: the fence stays open")
    return found


def all_blocks() -> list[Block]:
    """Return the blocks of all pages."""
    return [block for page in pages() for block in blocks(page)]


def commands(block: Block) -> list[Command]:
    """Return the commands of a console block. Raises ValueError for output before a command.

    >>> (one,) = commands(Block("x.md", 1, "console", "$ echo a \\\\\\n    b\\na b\\n"))
    >>> one.text, one.output
    ('echo a  b', ('a b',))
    """
    found = list[Command]()
    for command, output in _parted(block):
        found.append(Command(block, command, tuple(output)))
    return found


def _parted(block: Block) -> Iterator[tuple[str, list[str]]]:
    command, output, continues = "", list[str](), False
    for line in block.text.splitlines():
        if continues:
            command += " " + line.strip()
        elif line.startswith("$ "):
            if command:
                yield command, output
            command, output = line.removeprefix("$ "), []
        elif not command:
            raise ValueError(f"{block}: {line!r} comes before a command")
        else:
            output.append(line)
            continue
        continues = command.endswith("\\")
        command = command.removesuffix("\\")
    if command:
        yield command, output


def scripts(of: Sequence[Block]) -> set[str]:
    """Return the files that commands among these blocks run by `python NAME.py`."""
    called = (one.text for block in of if block.language == "console" for one in commands(block))
    return set(re.findall(r"\bpython ([\w-]+\.py)", "\n".join(called)))


def example(file: str) -> dict[str, object]:
    """Return what a file of the README defines."""
    (source,) = [block for block in blocks("README.md") if block.file == file]
    defined: dict[str, object] = {}
    exec(compile(source.text, str(source), "exec"), defined)
    return defined


def tree_of(page: str) -> list[str]:
    """Return the packages that the tree of a page lists, as paths, in order."""
    (block,) = re.findall(r"^## The tree\n.*?^```\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    found, parents = [], list[str]()
    for line in block.splitlines():
        matched = re.fullmatch(r"((?:  )*)(\w+)/ +\S.*", line)
        assert matched is not None, line
        parents[len(matched[1]) // 2 :] = [matched[2]]
        found.append("/".join(parents))
    return found
