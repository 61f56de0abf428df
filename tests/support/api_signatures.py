"""The signatures of the public names, as `docs/reference/api.md` lists them for plain Markdown.

Run this module to write the list again: `.venv/bin/python -m tests.support.api_signatures`. A test
compares the page with it. Guarantees that each public name is listed, with its public methods, the
overloads of each and the first sentence of its docstring.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import is_dataclass
from types import FunctionType, ModuleType
from typing import ForwardRef, get_overloads, is_typeddict

import meander
import meander.testing
from meander.dataflow.api.extensible import Extensible
from meander.dataflow.api.joined import Joinable
from meander.dataflow.operators.keyed.column_fold import ColumnFold
from tests.support.doc_blocks import ROOT

PAGE = ROOT / "docs" / "reference" / "api.md"
START = "<!-- signatures: made by tests.support.api_signatures -->\n\n"
END = "\n<!-- /signatures -->\n"
MADE_BY_FLOWS = {
    "ArrangedCollection", "Collection", "Context", "KeyedStream", "Matches", "ObjectColumn",
    "OperatorServices", "Pattern", "ProcessedStream", "Stream", "Table", "Window",
    "WindowContext", "WindowedStream",
}  # fmt: skip
"""Classes whose objects a user gets from methods and functions."""
SHARED = Joinable, Extensible
"""Classes without a public name, whose methods count as those of the classes that extend them."""
_PLAIN = str | bytes | int | float | None


def listed() -> str:
    """Return the list, without the markers around it."""
    return "\n".join(
        f"### Signatures of `{face.__name__}`\n\n" + "".join(_entries(face))
        for face in (meander, meander.testing)
    )


def listed_in(page: str) -> str:
    """Return the list that a page has between the markers."""
    return page.partition(START)[2].partition(END)[0]


def signature(of: Callable[..., object], name: str) -> str:
    """Return a call of a function or class with its arguments, as a user writes it.

    >>> def double(value: int, *, times: int = 2) -> int: ...
    >>> signature(double, "double")
    'double(value: int, *, times: int = 2) -> int'
    """
    found = inspect.signature(of)
    shown, has_star = list[str](), False
    for one in found.parameters.values():
        if one.name == "self":
            continue
        if one.kind is one.KEYWORD_ONLY and not has_star:
            shown.append("*")
        has_star |= one.kind in (one.KEYWORD_ONLY, one.VAR_POSITIONAL)
        star = "*" if one.kind is one.VAR_POSITIONAL else ""
        default = "" if one.default is one.empty else f" = {_default(one.default)}"
        shown.append(f"{star}{one.name}{_annotated(': ', one.annotation)}{default}")
    result = "" if inspect.isclass(of) else _annotated(" -> ", found.return_annotation)
    return f"{name}({', '.join(shown)}){result}"


def first_sentence(of: object) -> str:
    """Return the first sentence of a docstring, in one line.

    >>> first_sentence(first_sentence)
    'Return the first sentence of a docstring, in one line.'
    """
    text = " ".join((inspect.getdoc(of) or "").split("\n\n")[0].split())
    return re.split(r"(?<=[.:]) ", text.replace(": ", ":\0"))[0].replace("\0", " ")


def _entries(face: ModuleType) -> Iterator[str]:
    for name in face.__all__:
        of = getattr(face, name)
        if isinstance(of, ModuleType):
            yield _entry(name, of)
            yield from (f"    {one}" for one in _members(of))
            continue
        is_made = name in MADE_BY_FLOWS or is_typeddict(of)
        has_own_arguments = not is_made and of.__init__ is not Exception.__init__
        yield _entry(signature(of, name) if has_own_arguments else name, of)
        if isinstance(of, type):
            yield from (f"    {one}" for one in _methods(of))


def _members(module: ModuleType) -> Iterator[str]:
    """Yield the functions of a module, and the class that they return."""
    for name, one in vars(module).items():
        is_own = isinstance(one, FunctionType) and one.__module__ == module.__name__
        if one is ColumnFold or (is_own and not name.startswith("_")):
            yield _entry(signature(one, f".{name}"), one)


def _methods(of: type) -> Iterator[str]:
    shared = dict[str, object]()
    for extended in [one for one in of.__bases__ if one in SHARED]:
        for base in [one for one in extended.__mro__ if one in SHARED]:
            shared |= vars(base)
    for name, member in {**vars(of), **shared}.items():
        if name.startswith("_"):
            continue
        if isinstance(member, property) and member.fget is not None:
            result = inspect.signature(member.fget).return_annotation
            yield _entry(f".{name}{_annotated(': ', result)}", member)
            continue
        function = member.__func__ if isinstance(member, staticmethod) else member
        if isinstance(function, FunctionType):
            for one in get_overloads(function) or [function]:
                yield _entry(signature(one, f".{name}"), function)


def _entry(head: str, of: object) -> str:
    return f"- `{head}`: {first_sentence(of)}\n"


def _annotated(before: str, annotation: object) -> str:
    if annotation is inspect.Signature.empty:
        return ""
    # Those of named tuples are forward references.
    plain = annotation.__forward_arg__ if isinstance(annotation, ForwardRef) else annotation
    return f"{before}{plain}"


def _default(value: object) -> str:
    if isinstance(value, _PLAIN) or value == ():
        return f'"{value}"' if isinstance(value, str) else repr(value)
    if is_dataclass(value) and not isinstance(value, type) and value == type(value)():
        return f"{type(value).__name__}()"
    return value.__name__ if isinstance(value, type) else "..."


if __name__ == "__main__":
    text = PAGE.read_text()
    PAGE.write_text(text.replace(START + listed_in(text) + END, START + listed() + END))
