"""The classes that a flow names: in `Flow(types=...)`, by its formats, collections and annotations.

Guarantees that a class within another one, such as that of a field, counts as named too. An
annotation that cannot be read names nothing, and hides no other one; the encoder then refuses the
objects with an error that names the class. Cost: once per start, some microseconds per function.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from inspect import get_annotations, isroutine, unwrap
from types import SimpleNamespace
from typing import Protocol, get_args, get_type_hints, is_typeddict, runtime_checkable

from meander.dataflow.api.nodes import Node, SinkNode, SourceNode
from meander.dataflow.api.validation import functions_of
from meander.dataflow.operators.collection.row_type import RowType
from meander.dataflow.operators.error_policy import failure
from meander.state.encoding.forms import FORMS
from meander.state.encoding.named_types import NamedTypes, describe


@runtime_checkable
class NamesTypes(Protocol):
    """A source or sink whose formats name types."""

    @property
    def types(self) -> Iterable[object]:
        """Return the types of its values and keys."""


def named_types(given: Iterable[object], nodes: Iterable[Node]) -> NamedTypes:
    """Return the classes that a flow names. Raise SetupError as `NamedTypes` does."""
    found = dict[type, None]()
    for kind in given:
        if isinstance(kind, type) and kind not in FORMS:
            found[kind] = None
        found |= dict.fromkeys(classes_in(kind))
    for node in nodes:
        found |= dict.fromkeys(_of_node(node))
    return NamedTypes(found)


def classes_in(annotation: object) -> Iterator[type]:
    """Yield the classes in an annotation that the codec encodes by name, at every depth.

    >>> from enum import Enum
    >>> class Size(Enum):
    ...     SMALL = 1
    >>> [*classes_in(dict[str, list[Size] | None])]
    [<enum 'Size'>]
    """
    seen = set[int]()
    left = [annotation]
    while left:
        one = left.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        left += get_args(one)
        if not isinstance(one, type):
            continue
        # The codec knows some classes in every flow.
        known = one not in FORMS and describe(one) is not None
        if known:
            yield one
        if known or is_typeddict(one):
            left += _hints(one)


def _of_node(node: Node) -> Iterator[type]:
    match node:
        case SourceNode(spec=spec) | SinkNode(spec=spec) if isinstance(spec, NamesTypes):
            for kind in spec.types:
                yield from classes_in(kind)
    if isinstance(row_type := getattr(node, "row_type", None), RowType):
        yield from classes_in(row_type.key)
        yield from classes_in(row_type.value)
    for _, function in functions_of(node):
        if isinstance(function, type):
            yield from classes_in(function)
        for hint in _hints(function):
            yield from classes_in(hint)


def _hints(annotated: object) -> list[object]:
    """Return the annotations of a class or function. Those of a callable object are its call's."""
    function = annotated.func if isinstance(annotated, partial) else annotated
    if not (isinstance(function, type) or isroutine(function)):
        function = type(function).__call__
    function = unwrap(function)
    try:
        return [*get_type_hints(function, include_extras=True).values()]
    except failure():  # annotations are user code
        return [*_readable_hints(function)]


def _readable_hints(annotated: Callable[..., object]) -> Iterator[object]:
    """Yield the annotations that can be read, where others name what a type checker alone knows."""
    for part in annotated.__mro__ if isinstance(annotated, type) else [annotated]:
        scope = getattr(part, "__globals__", None) or vars(sys.modules[part.__module__])
        for name, annotation in get_annotations(part).items():
            alone = SimpleNamespace(__annotations__={name: annotation})
            try:
                hints = get_type_hints(alone, scope, include_extras=True)
            except failure():
                continue
            yield from hints.values()
