"""A code has its value as long as any operator holds it, and no longer."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from meander.dataflow.collections import dictionary as dictionaries
from meander.dataflow.collections.dictionary import Dictionary
from meander.schemas.errors import MeanderError
from meander.state.encoding import object_column
from meander.state.encoding.object_column import Codes, ObjectColumn

NAMES = [f"name {n}" for n in range(10)]


class Holder:
    """An operator that holds some codes, and may be amid a step."""

    def __init__(self, dictionary: Dictionary) -> None:
        self.held = np.empty(0, np.int64)
        self.busy = False
        dictionary.add_holder(self.codes)

    def codes(self) -> Iterator[Codes] | None:
        return None if self.busy else iter([self.held])


@pytest.fixture
def dictionary(monkeypatch: pytest.MonkeyPatch) -> Dictionary:
    """A dictionary that collects from four values on."""
    monkeypatch.setattr(dictionaries, "LEAST", 4)
    return Dictionary()


def collect(dictionary: Dictionary) -> None:
    while dictionary.collect(1):
        pass


def test_values_that_nothing_holds_are_given_up(dictionary: Dictionary) -> None:
    holder = Holder(dictionary)
    codes = dictionary.codes(ObjectColumn.of(NAMES))
    holder.held = codes[:3]
    collect(dictionary)
    assert len(dictionary) == 3
    assert dictionary.column(codes[:3]).tolist() == NAMES[:3]


def test_a_column_that_has_left_keeps_its_values(dictionary: Dictionary) -> None:
    Holder(dictionary)
    column = dictionary.column(dictionary.codes(ObjectColumn.of(NAMES)))
    collect(dictionary)
    assert len(dictionary) == 0
    assert column.tolist() == NAMES
    assert dictionary.column(dictionary.codes(column)).tolist() == NAMES


def test_values_that_come_or_leave_while_it_collects_stay(dictionary: Dictionary) -> None:
    holder = Holder(dictionary)
    holder.held = dictionary.codes(ObjectColumn.of(NAMES))
    assert dictionary.collect(1)
    leaving, coming = holder.held[:1], dictionary.codes(ObjectColumn.of(["new"]))
    assert dictionary.column(leaving).tolist() == NAMES[:1]
    collect(dictionary)
    assert len(dictionary) == len(NAMES) + 1
    assert dictionary.value(int(coming[0])) == "new"


def test_it_collects_nothing_amid_a_step(dictionary: Dictionary) -> None:
    holder = Holder(dictionary)
    dictionary.codes(ObjectColumn.of(NAMES))
    holder.busy = True
    assert not dictionary.collect(100)
    assert len(dictionary) == len(NAMES)


def test_two_values_with_one_code_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_column, "code_of", lambda _: 7)
    dictionary = Dictionary()
    dictionary.codes(ObjectColumn.of(["a"]))
    with pytest.raises(MeanderError, match="the values 'a' and 'b' have the same hash"):
        dictionary.codes(ObjectColumn.of(["b"]))
