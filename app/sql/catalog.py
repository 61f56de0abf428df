"""The views of a flow: its states, and the topics that it reads and writes.

Guarantees that a name means one thing. A view has the name of its operator or topic; where an
operator and a topic share one, only `state:NAME` and `topic:NAME` name them. These names are valid
for all views. Cost: a request for the topics; a checkpoint is read once a state is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import cached_property, partial
from pathlib import Path
from typing import Literal

from meander.app.loading.plan_topics import present_topics
from meander.app.recovery.arrangement_rows import select_checkpoint
from meander.app.sql.decoding import (
    CollectionDecoder,
    StateDecoder,
    TopicDecoders,
    declared_form,
    flow_of,
    guessed,
    keyed_node,
    spec_of,
    topics_of,
)
from meander.app.sql.kinds import inner_operators, kind_of, stored_by
from meander.connectors.kafka import client
from meander.connectors.spark.column_types import INT, ColumnType
from meander.connectors.spark.state_rows import StateRows
from meander.connectors.spark.topic_ranges import ranges_of
from meander.connectors.spark.topic_rows import TopicRows, messages_of, newest_ranges
from meander.connectors.spark.views import RowSource
from meander.connectors.topics.checkpointed_bins import written_codec
from meander.connectors.topics.internal_topics import TopicNames
from meander.dataflow.api.nodes import KeyedNode, SinkNode, SourceNode
from meander.dataflow.tables.copies import COPIES
from meander.schemas.errors import SetupError
from meander.state.checkpoint.arrangements import KeptArrangement
from meander.state.checkpoint.checkpoint import Checkpoint

Kind = Literal["state", "topic"]
GUESSED = 100
"""The records of a topic that decide on a format which no flow names."""
NEAR = 5
"""The most names that an error proposes."""


@dataclass(frozen=True, slots=True)
class ViewName:
    """The name of a view, and what it shows."""

    kind: Kind
    name: str

    @property
    def full(self) -> str:
        """Return the name that no other view has.

        >>> ViewName("state", "totals").full
        'state:totals'
        """
        return f"{self.kind}:{self.name}"


@dataclass(frozen=True)
class Catalog:
    """The views of one flow, by its module or its name alone."""

    settings: dict[str, str] = field(repr=False)
    names: TopicNames
    flow: str
    module: Path | None
    at: str | None
    """The checkpoint of the states; None for the newest."""

    @cached_property
    def views(self) -> list[ViewName]:
        """Return all views: states, then topics."""
        states = dict.fromkeys((*self._operators, *self._arrangements))
        return [
            *(ViewName("state", name) for name in states),
            *(ViewName("topic", topic) for topic in self._topics),
        ]

    @cached_property
    def checkpoint(self) -> Checkpoint:
        """Return the checkpoint of the states. Raise SetupError where there is none."""
        return select_checkpoint(self.settings, self.names, self.flow, self.at)

    @cached_property
    def missing_states(self) -> SetupError | None:
        """Return why there are no states; None where there are."""
        try:
            self.checkpoint  # noqa: B018 (it is read)
        except SetupError as error:
            return error
        return None

    def find(self, name: str) -> ViewName:
        """Return the view of a name. Raise SetupError where none or several have it.

        Upper and lower case differ only where two views differ in nothing else.
        """
        found = find_name(name, self.views)
        if isinstance(found, ViewName):
            return found
        if found is None and self.module is None and self.missing_states is not None:
            raise self.missing_states
        raise unknown_view(name, self.views)

    def shown(self, view: ViewName) -> str:
        """Return the name of a view as a query has it."""
        return shown_name(view, self.views)

    def open(self, view: ViewName) -> RowSource:
        """Return the rows of a view as of now. Raise SetupError where they cannot be read."""
        if view.kind == "topic":
            return self._topic_rows(view.name)
        of_states = partial(StateRows.of, self.settings, self.names)
        if (kept := self._arrangements.get(view.name)) is not None:
            columns: dict[str, ColumnType | None] = {"key": None, "value": None, "count": INT}
            decoder = CollectionDecoder(kept)
            return of_states(kept.kept_by, self.checkpoint, columns, decoder, whole_bins=True)
        node = None if self.module is None else keyed_node(flow_of(self.module), view.name)
        if node is not None:
            node = stored_by(node)
        operator, read = view.name if node is None else node.name, self.checkpoint
        codec, _ = written_codec(read, operator)
        opened = StateDecoder(operator, codec.name, self.module)
        if codec.name == COPIES.name:
            read = _of_one_bin(read, operator)
        return of_states(operator, read, kind_of(node).columns, opened)

    def _topic_rows(self, topic: str) -> TopicRows:
        ranges = tuple(ranges_of(self.settings, [topic]))
        node = self._topics[topic]
        spec = None if self.module is None or not node else spec_of(flow_of(self.module), node)
        unknown = [
            part for part in ("key", "value") if spec is None or declared_form(spec, part) is None
        ]
        newest = newest_ranges(ranges, GUESSED) if unknown else []
        sample = [m for one in newest for some in messages_of(self.settings, one) for m in some]
        key = guessed([one.key() for one in sample], ("str",))
        value = guessed([one.value() for one in sample], ("json", "str"))
        return TopicRows(
            self.settings, ranges, TopicDecoders(topic, key, value, self.module, node)
        )  # fmt: skip

    @cached_property
    def _topics(self) -> dict[str, str]:
        """Return the topics, each with the node of the flow whose formats count; '' for none."""
        present = present_topics(client.admin(self.settings))
        if self.module is None:
            return dict.fromkeys(sorted(present), "")
        found = dict[str, str]()
        for kind in (SourceNode, SinkNode):
            for node in flow_of(self.module).nodes:
                if isinstance(node, kind):
                    for topic in topics_of(node.spec, present):
                        found.setdefault(topic, node.name)
        return found

    @cached_property
    def _operators(self) -> list[str]:
        """Return the operators with a view of their states."""
        flow = None if self.module is None else flow_of(self.module)
        inner = set[str]() if flow is None else inner_operators(flow)
        defined = () if flow is None else flow.nodes
        keyed = [
            node.name for node in defined if isinstance(node, KeyedNode) and node.name not in inner
        ]
        if self.missing_states is not None:
            return keyed
        cut = self.checkpoint.cut
        others = {name for one in cut.arrangements for name in (one.operator, one.kept_by)}
        return [*keyed, *sorted(self.checkpoint.operators - others - inner - {*keyed})]

    @cached_property
    def _arrangements(self) -> dict[str, KeptArrangement]:
        """Return the collections by the names of their views."""
        kept = () if self.missing_states is not None else self.checkpoint.cut.arrangements
        return {_collection_name(one): one for one in kept}


def _of_one_bin(checkpoint: Checkpoint, operator: str) -> Checkpoint:
    """Return a checkpoint with one bin of an operator, where each bin has a copy of a table."""
    first = next(one for one in checkpoint.manifests if one.operator == operator)
    return replace(checkpoint, manifests=(first,))


def _collection_name(one: KeptArrangement) -> str:
    """Return the name of the view of a collection: that of its operator, if it is the output."""
    return one.operator if one.name == "output" else f"{one.operator}.{one.name}"


def find_name(name: str, views: list[ViewName]) -> ViewName | list[ViewName] | None:
    """Return the view of a name, several that share it, or None.

    >>> state, topic = ViewName("state", "totals"), ViewName("topic", "totals")
    >>> find_name("TOTALS", [state]) == state, find_name("totals", [state, topic])
    (True, [ViewName(kind='state', name='totals'), ViewName(kind='topic', name='totals')])
    >>> find_name("topic:totals", [state, topic]), find_name("total", [state])
    (ViewName(kind='topic', name='totals'), None)
    """
    for same in (str, str.casefold):
        found = [one for one in views if same(name) in (same(one.name), same(one.full))]
        if len(found) == 1:
            return found[0]
        if found:
            return found
    return None


def shown_name(view: ViewName, views: list[ViewName]) -> str:
    """Return the name of a view as a query has it.

    >>> state, topic = ViewName("state", "totals"), ViewName("topic", "per-plane")
    >>> shown_name(state, [state, topic]), shown_name(topic, [state, topic])
    ('totals', '`per-plane`')
    """
    name = view.name if find_name(view.name, views) == view else view.full
    return name if name.isidentifier() and name.isascii() else f"`{name.replace('`', '``')}`"


def unknown_view(name: str, views: list[ViewName]) -> SetupError:
    """Return the error about a name that none or several of the views have."""
    if isinstance(clash := find_name(name, views), list):
        cause = "several views have that name"
        return SetupError(f"view {name!r}", cause, _named(one.full for one in clash))
    names = [one.name for one in views]
    near = get_close_matches(name, names, NEAR) or names[:NEAR]
    shown = dict.fromkeys(shown_name(one, views) for one in views if one.name in near)
    remedy = _named(iter(shown)) if shown else "run the flow, or create its topics"
    return SetupError(f"view {name!r}", "there is none of that name", remedy)


def _named(names: Iterator[str]) -> str:
    return f"name one of these: {', '.join(names)}"
