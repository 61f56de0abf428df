"""Find retired words in the product; `docs/glossary.md` says which words are retired.

The last column of the glossary lists retired words in backticks. An arrow after a word names its
replacement, else the term of the row replaces it. There are three kinds of retired words:

- A name (`OldName`, `old_name`) matches a whole identifier, case-sensitively. A name with a single
  capital reads as an ordinary word in a sentence, so prose holds it between backticks only.
- An option (`--old-option`) matches literally.
- Any other word or phrase matches in prose and as a part of an identifier, in any case, and so does
  its plural with `s` or `es`.

Guarantees that identifiers, comments, strings, docstrings, file names and Markdown files of the
product are searched. The column of retired words itself is left out. Cost: about three seconds.
"""

from __future__ import annotations

import io
import keyword
import re
import sys
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
GLOSSARY = "docs/glossary.md"
PACKAGES = ("app", "connectors", "dataflow", "schemas", "state", "meander")
PAGES = ("README.md", "CONTRIBUTING.md", "docs/**/*.md")

_RETIRED = re.compile(r"`([^`]+)`(?:\s*→\s*`([^`]+)`)?")
_IDENTIFIER = re.compile(r"[^\W\d]\w*")
_STRING = re.compile(
    r"(?P<prefix>\w*)(?P<quotes>'''|\"\"\"|'|\")(?P<body>.*)(?P=quotes)", re.DOTALL
)
_SPAN = re.compile(r"(`+)(.+?)\1", re.DOTALL)
_FENCE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
_DOCTEST = re.compile(r"^\s*(?:>>>|\.\.\.) (.*)$", re.MULTILINE)
_FIELD = re.compile(r"{([^{}]*)}")
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


@dataclass(frozen=True)
class RetiredWord:
    """A word that the glossary retires, and the word that replaces it."""

    word: str
    replacement: str

    @property
    def is_name(self) -> bool:
        """Whether the word is a name of code rather than an ordinary word."""
        return self.word != self.word.lower() or "_" in self.word

    @property
    def is_option(self) -> bool:
        """Whether the word is an option of the command line."""
        return self.word.startswith("--")

    @property
    def is_ordinary_in_prose(self) -> bool:
        """Whether a sentence may hold this name as an ordinary word, as its first one does."""
        return self.word.isalpha() and self.word[1:] == self.word[1:].lower()


@dataclass(frozen=True)
class Finding:
    """A retired word in a file."""

    file: str
    line: int
    retired: RetiredWord

    def __str__(self) -> str:
        word, replacement = self.retired.word, self.retired.replacement
        return f"{self.file}:{self.line}: retired word {word!r}: write {replacement!r}"


@dataclass(frozen=True)
class Text:
    """A piece of a file: code, where names stand, or prose."""

    line: int
    text: str
    is_code: bool


def retired_words(glossary: str) -> list[RetiredWord]:
    """Return the retired words that the tables of a glossary list in their last column."""
    found = []
    for term, *_, replaces in _rows(glossary):
        for word, replacement in _RETIRED.findall(replaces):
            found.append(RetiredWord(word, replacement or term.replace("`", "")))
    return found


def _rows(glossary: str) -> Iterator[list[str]]:
    for line in glossary.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if line.startswith("|") and len(cells) > 1:
            yield cells


class Search:
    """A search for retired words in one text after another."""

    def __init__(self, words: Iterable[RetiredWord]) -> None:
        self._names: dict[str, RetiredWord] = {}
        self._plain: list[tuple[re.Pattern[str], RetiredWord]] = []
        self._options: list[tuple[re.Pattern[str], RetiredWord]] = []
        for word in words:
            if word.is_option:
                pattern = re.compile(rf"(?<![\w-]){re.escape(word.word)}(?![\w-])")
                self._options.append((pattern, word))
            elif word.is_name:
                self._names[word.word.lstrip("_")] = word
            else:
                spaced = r"\s+".join(map(re.escape, word.word.split()))
                self._plain.append((re.compile(rf"\b{spaced}(?:e?s)?\b", re.IGNORECASE), word))

    def python(self, file: str, source: str) -> list[Finding]:
        """Find retired words in a Python file: in its identifiers, comments and strings."""
        return self._findings(file, [*_file_name(file), *_python(source)])

    def markdown(self, file: str, source: str) -> list[Finding]:
        """Find retired words in a Markdown file."""
        return self._findings(file, [*_file_name(file), *_markdown(source)])

    def _findings(self, file: str, texts: Iterable[Text]) -> list[Finding]:
        found = {Finding(file, line, word) for text in texts for line, word in self._in(text)}
        return sorted(found, key=lambda finding: (finding.line, finding.retired.word))

    def _in(self, text: Text) -> Iterator[tuple[int, RetiredWord]]:
        def line(of: str, position: int) -> int:
            return text.line + of.count("\n", 0, position)

        for match in _IDENTIFIER.finditer(text.text):
            name = self._names.get(match.group().lstrip("_"))
            if name is not None and (text.is_code or not name.is_ordinary_in_prose):
                yield line(text.text, match.start()), name
        # `split_name` and `SplitName` hold the words "split" and "name"; lines stay as they are.
        words = _HUMP.sub(" ", text.text).replace("_", " ")
        for pattern, plain in self._plain:
            for match in pattern.finditer(words):
                yield line(words, match.start()), plain
        for pattern, option in self._options:
            for match in pattern.finditer(text.text):
                yield line(text.text, match.start()), option


def _file_name(file: str) -> list[Text]:
    return [Text(1, Path(part).stem, is_code=True) for part in Path(file).parts]


def _python(source: str) -> Iterator[Text]:
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        line = token.start[0]
        if token.type == tokenize.NAME:
            if not keyword.iskeyword(token.string):
                yield Text(line, token.string, is_code=True)
        elif token.type == tokenize.STRING:
            yield from _string(line, token.string)
        elif token.type == tokenize.COMMENT or tokenize.tok_name[token.type] == "FSTRING_MIDDLE":
            yield from _prose(line, token.string)


def _string(line: int, literal: str) -> Iterator[Text]:
    matched = _STRING.fullmatch(literal)
    assert matched is not None
    body = matched["body"]
    if _IDENTIFIER.fullmatch(body):
        yield Text(line, body, is_code=True)
        return
    yield from _prose(line, body)
    codes = [_DOCTEST, _FIELD] if "f" in matched["prefix"].lower() else [_DOCTEST]
    for code in codes:
        for match in code.finditer(body):
            yield Text(line + body.count("\n", 0, match.start(1)), match[1], is_code=True)


def _markdown(source: str) -> Iterator[Text]:
    yield from _prose(1, _FENCE.sub(lambda fence: "\n" * fence.group().count("\n"), source))
    for fence in _FENCE.finditer(source):
        yield Text(1 + source.count("\n", 0, fence.start()), fence.group(), is_code=True)


def _prose(line: int, text: str) -> Iterator[Text]:
    yield Text(line, text, is_code=False)
    for span in _SPAN.finditer(text):
        yield Text(line + text.count("\n", 0, span.start(2)), span[2], is_code=True)


def without_retired(glossary: str) -> str:
    """Return the glossary without its column of retired words, line by line."""
    return "\n".join(
        line.rstrip().rstrip("|").rpartition("|")[0] if line.startswith("|") else line
        for line in glossary.splitlines()
    )


def product(root: Path = ROOT) -> Iterator[tuple[str, str]]:
    """Yield the path and the text of each Python and Markdown file of the product."""
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            yield path.relative_to(root).as_posix(), path.read_text()
    for pattern in PAGES:
        for path in sorted(root.glob(pattern)):
            file, text = path.relative_to(root).as_posix(), path.read_text()
            yield file, without_retired(text) if file == GLOSSARY else text


def find(words: Iterable[RetiredWord], root: Path = ROOT) -> list[Finding]:
    """Find retired words in all files of the product."""
    search = Search(words)
    found = []
    for file, text in product(root):
        found += search.python(file, text) if file.endswith(".py") else search.markdown(file, text)
    return found


def main() -> int:
    """Print each retired word of the product; return 1 where there is one."""
    found = find(retired_words((ROOT / GLOSSARY).read_text()))
    for finding in found:
        print(finding)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
