"""What a user's function over columns returns is checked, and an error names its operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from meander.dataflow.collections.dictionary import Dictionary
from meander.dataflow.collections.reduce import Groups, count, distinct, minimum, top
from meander.dataflow.operators.collection.functions import ColumnFunction
from meander.dataflow.operators.collection.updates import UpdateCoding
from meander.dataflow.operators.error_policy import FunctionFailed
from meander.schemas.errors import MeanderError
from meander.state.encoding.object_column import ObjectColumn

KEYS, VALUES = np.array([1, 2, 3]), np.array([7, 8, 9])
NUMBERS = (False, False), UpdateCoding(Dictionary(), key=False, value=False)
GROUPS = Groups(np.array([0, 2, 2, 3]), np.array([4, 5, 6]), np.array([1, 1, 2]))
"""Two values of the first of three keys, none of the second, and one of the third."""


def ints(*numbers: int) -> Any:
    return np.array(numbers, np.int64)


Function = Callable[..., Any]


@pytest.mark.parametrize(
    ("says", "function"),
    [
        ("its function returned int64 of shape (3,) for 3 rows; return", lambda k, v: k),
        ("returned (int64 of shape (3,), int) for 3 rows", lambda k, v: (k, 1)),
        ("returned (int64 of shape (3,), float64 of shape (3,))", lambda k, v: (k, v / 2)),
        ("returned (int64 of shape (3,), bool of shape (3,))", lambda k, v: (k, v > 1)),
        ("returned (int64 of shape (3,), int32 of shape (3,))", lambda k, v: (k, v.astype("i4"))),
        ("returned (int64 of shape (3,), object of shape (3,))", lambda k, v: (k, v.astype("O"))),
        ("returned (int64 of shape (2,), int64 of shape (3,))", lambda k, v: (k[1:], v)),
        ("returned (int64 of shape (2,), int64 of shape (2,))", lambda k, v: (k[1:], v[1:])),
        ("returned (int64 of shape (1, 3), int64 of shape (3,))", lambda k, v: (k[None], v)),
        ("returned NoneType for 3 rows", lambda k, v: None),
        ("for 3 rows; return columns of keys, values: int64, 3 rows each.", lambda k, v: (k, v, v)),
    ],
)
def test_a_function_row_for_row_returns_two_columns(says: str, function: Function) -> None:
    with pytest.raises(MeanderError) as refused:
        ColumnFunction("double", function, *NUMBERS).rows(KEYS, VALUES)
    assert str(refused.value).startswith("operator 'double': its function ")
    assert says in str(refused.value)


@pytest.mark.parametrize(
    ("says", "function"),
    [
        (
            "returned bool of shape (2,) for 3 rows; return a column of 3 bools",
            lambda k, v: k[1:] > 0,
        ),
        ("returned int64 of shape (3,)", lambda k, v: k),
        ("returned bool of shape (3, 1)", lambda k, v: (k > 0)[:, None]),
        ("returned bool for 3 rows", lambda k, v: True),
    ],
)
def test_a_filter_returns_bools(says: str, function: Function) -> None:
    with pytest.raises(MeanderError) as refused:
        ColumnFunction("some", function, *NUMBERS).mask(KEYS, VALUES)
    assert says in str(refused.value)


@pytest.mark.parametrize(
    ("says", "function"),
    [
        ("return columns of keys, values, rows: int64, equal lengths.", lambda k, v: (k, v)),
        ("return columns of keys, values, rows", lambda k, v: (k, v, ints(0, 1))),
        (
            "names rows -1 to 1 of 3; name each row by its place, 0 to 2.",
            lambda k, v: (k, v, v - 8),
        ),
        ("names rows 1 to 3 of 3", lambda k, v: (k, v, k)),
    ],
)
def test_a_flat_map_names_the_row_of_each_result(says: str, function: Function) -> None:
    with pytest.raises(MeanderError) as refused:
        ColumnFunction("many", function, *NUMBERS).flat_rows(KEYS, VALUES)
    assert says in str(refused.value)


@pytest.mark.parametrize(
    ("says", "function"),
    [
        ("returned (int64 of shape (3,)) for 3 rows; return Groups", lambda k, g: [k]),
        ("return 4 starts, and a count for each", lambda k, g: Groups(k, g.values, g.counts)),
        ("return 4 starts", lambda k, g: Groups(g.starts, g.values, g.counts[1:])),
        ("return 4 starts", lambda k, g: Groups(g.starts, g.values / 2, g.counts)),
        ("return 4 starts", lambda k, g: Groups(g.starts, g.values, k[0])),
        ("do not ascend from 0 to 3", lambda k, g: Groups(g.starts + 1, g.values, g.counts)),
        ("do not ascend", lambda k, g: Groups(ints(0, 2, 1, 3), g.values, g.counts)),
        ("values of key 1 that do not ascend", lambda k, g: Groups(g.starts, -g.values, k)),
        ("values of key 3 that do not", lambda k, g: Groups(ints(0, 1, 1, 3), ints(9, 4, 4), k)),
        ("give each value once", lambda k, g: Groups(g.starts, ints(4, 4, 4), g.counts)),
    ],
)
def test_a_reduction_returns_ascending_groups(says: str, function: Function) -> None:
    with pytest.raises(MeanderError) as refused:
        ColumnFunction("least", function, *NUMBERS).groups(KEYS, GROUPS)
    assert says in str(refused.value)


@pytest.mark.parametrize("function", [minimum, count, distinct, top(1), top(9)])
def test_the_reductions_that_come_with_collections_pass(function: Function) -> None:
    for groups in GROUPS, Groups(ints(0, 0, 0, 0), ints(), ints()):
        found, wanted = (
            ColumnFunction("r", function, *NUMBERS).groups(KEYS, groups),
            function(KEYS, groups),
        )
        for name in ("starts", "values", "counts"):
            assert getattr(found, name).tolist() == getattr(wanted, name).tolist()


def test_values_of_the_next_group_may_be_less() -> None:
    down = Groups(ints(0, 0, 2, 3), ints(5, 6, 4), ints(1, 1, 1))
    found = ColumnFunction("r", lambda k, g: down, *NUMBERS).groups(KEYS, GROUPS)
    assert found.values.tolist() == [5, 6, 4]


def failed(call: Callable[[ColumnFunction], object], function: Function) -> FunctionFailed:
    with pytest.raises(FunctionFailed) as failed:
        call(ColumnFunction("half", function, *NUMBERS))
    return failed.value


def seven_over(keys: Any, values: Any) -> Any:
    """Divide by the distance from key 2."""
    return keys, np.array([7 // int(key - 2) for key in keys])


def of_no_key_2(keys: Any, groups: Groups) -> Groups:
    if 2 in keys:
        raise ValueError("key 2 came")
    return groups


def test_an_error_of_a_function_names_operator_and_row_and_keeps_the_traceback() -> None:
    error = failed(lambda one: one.rows(KEYS, VALUES), seven_over)
    assert str(error) == (
        "operator 'half': its function failed on key 2, value 8: ZeroDivisionError: integer"
        " division or modulo by zero; mend the function."
    )
    assert "7 // int(key - 2)" in error.trace


@pytest.mark.parametrize(
    ("where", "call", "function"),
    [
        ("key 2, value 8", lambda one: one.mask(KEYS, VALUES), seven_over),
        ("key 2, value 8", lambda one: one.flat_rows(KEYS, VALUES), seven_over),
        ("key 2, 0 distinct values", lambda one: one.groups(KEYS, GROUPS), of_no_key_2),
        ("key 2, 2 distinct values", lambda one: one.groups(KEYS + 1, GROUPS), of_no_key_2),
        ("key 2, value 8", lambda one: one.rows(KEYS[1:], VALUES[1:]), seven_over),
    ],
)
def test_an_error_of_a_function_names_the_row(
    where: str, call: Callable[[ColumnFunction], object], function: Function
) -> None:
    assert f"failed on {where}: " in str(failed(call, function))


def test_an_error_of_the_function_of_a_join_names_both_values() -> None:
    join = ColumnFunction("j", lambda k, _, __: seven_over(k, _), (False,) * 3, NUMBERS[1])
    with pytest.raises(FunctionFailed, match="failed on key 2, values 8 and 5: "):
        join.rows(KEYS, VALUES, KEYS + 3)


def test_an_error_that_no_row_gives_alone_names_the_first_row() -> None:
    def small(keys: Any, values: Any) -> Any:
        if len(keys) > 1:
            raise ValueError("too many")
        raise TypeError("another error")

    error = failed(lambda one: one.rows(KEYS, VALUES), small)
    assert "failed on 2 rows, the first with key 2, value 8: ValueError: too many" in str(error)
    empty = failed(lambda one: one.rows(KEYS[:0], VALUES[:0]), small)
    assert "failed on columns without rows: TypeError" in str(empty)


def test_an_error_of_a_function_names_python_values() -> None:
    coding = UpdateCoding(Dictionary(), key=True, value=False)
    cities = coding.dictionary.codes(ObjectColumn.of(["Rome", "Oslo"]))
    half = ColumnFunction(
        "half", lambda k, v: (k, [7 // (n - 8) for n in v.tolist()]), (True, False), coding
    )
    with pytest.raises(FunctionFailed, match="failed on key 'Oslo', value 8: "):
        half.rows(cities, VALUES[:2])


def test_a_function_cannot_change_columns_that_others_read() -> None:
    def double(keys: Any, values: Any) -> Any:
        values *= 2
        return keys, values

    with pytest.raises(FunctionFailed, match="operator 'double': .* read-only"):
        ColumnFunction("double", double, *NUMBERS).rows(KEYS, VALUES)
    with pytest.raises(FunctionFailed, match="read-only"):
        ColumnFunction("double", double, *NUMBERS).mask(KEYS, VALUES)
    assert VALUES.tolist() == [7, 8, 9]


def test_columns_reach_compiled_loops_contiguous_and_writable() -> None:
    function = ColumnFunction("swap", lambda k, v: (v, k[::-1]), *NUMBERS)
    keys, values = function.rows(KEYS, VALUES)
    assert keys is VALUES, "a column that passes is not copied"
    assert values.tolist() == [3, 2, 1]
    assert values.flags.writeable and values.flags.c_contiguous
    (_, one) = ColumnFunction("one", lambda k, v: (k, np.broadcast_to(1, 3)), *NUMBERS).rows(
        KEYS, VALUES
    )
    assert one.tolist() == [1, 1, 1] and one.flags.writeable
