"""Names of topics, and patterns of names, as a flow gives them at its definition.

Guarantees that a wrong name or pattern is refused there, with the remedy. A pattern is a regular
expression of whole names. Names that start with two underscores belong to Kafka, and match no
pattern.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from meander.schemas.errors import SetupError

_NAME = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,249}")
_RULE = "a name has 1 to 249 letters, digits, '.', '_' and '-'"


def check_topic(subject: str, topic: object, remedy: str) -> None:
    """Raise SetupError for a value that is no name of a topic.

    >>> check_topic("sink topic", ["a"], "name one topic")
    Traceback (most recent call last):
    meander.schemas.errors.SetupError: sink topic ['a']: it is of type list; name one topic.
    """
    if not isinstance(topic, str):
        cause = f"it is of type {type(topic).__name__}"
        raise SetupError(f"{subject} {topic!r}", cause, remedy)
    if not _NAME.fullmatch(topic):
        raise SetupError(f"{subject} {topic!r}", "Kafka allows no such name", _RULE)


def check_topics(subject: str, topics: object) -> None:
    """Raise SetupError for a value that is neither a pattern nor a list of topics, each once."""
    remedy = "give a list of topics, or a pattern such as 'orders-.*'"
    if isinstance(topics, str) and topics:
        check_pattern(subject, topics)
        return
    if not isinstance(topics, Sequence) or isinstance(topics, str | bytes) or not topics:
        raise SetupError(subject, f"they are {topics!r}", remedy)
    for one in topics:
        check_topic(f"{subject},", one, "name each topic as text")
    if len({*topics}) < len(topics):
        raise SetupError(subject, f"they are {topics!r}", "name each topic once")


def check_pattern(subject: str, pattern: object) -> None:
    """Raise SetupError for a value that is no pattern."""
    if not isinstance(pattern, str):
        raise SetupError(f"{subject}", f"it is {pattern!r}", "give a pattern such as 'orders-.*'")
    try:
        re.compile(pattern)
    except re.error as error:
        raise SetupError(f"{subject} {pattern!r}", f"it is no regular expression ({error})",
                         "give one of whole names, such as 'orders-.*'") from None  # fmt: skip


def matching(pattern: str, topics: Iterable[str]) -> list[str]:
    """Return the topics of the users that match a pattern, in the order of their names.

    >>> matching("orders-.*", ["orders-us", "orders-de", "refunds", "__orders-x"])
    ['orders-de', 'orders-us']
    >>> matching(".*", ["__consumer_offsets"])
    []
    """
    matches = re.compile(pattern).fullmatch
    return sorted(one for one in topics if matches(one) and not one.startswith("__"))
