"""Loops are compiled wherever they run, and compiled again whenever they differ."""

from __future__ import annotations

import importlib
import pkgutil
import subprocess
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
from numba.core.dispatcher import Dispatcher

import meander.dataflow.collections
import meander.state.collections
from meander.state.collections.columns import compiled, inlined

NOWHERE = "/nowhere/loops.py"
"""A module in a folder where nothing can be written."""


def modules() -> Iterator[ModuleType]:
    for package in (meander.state.collections, meander.dataflow.collections):
        for found in pkgutil.iter_modules(package.__path__):
            yield importlib.import_module(f"{package.__name__}.{found.name}")


def loops(module: ModuleType) -> dict[str, Any]:
    """The compiled loops that a module has or imports."""
    return {name: one for name, one in vars(module).items() if isinstance(one, Dispatcher)}


def test_a_compiled_loop_calls_loops_of_its_own_module_alone() -> None:
    """The machine code on disk belongs to the text of one module."""
    calls = 0
    for module in modules():
        for loop in loops(module).values():
            if loop.__module__ != module.__name__:
                continue
            for name in loop.py_func.__code__.co_names:
                if name in loops(module):
                    calls += 1
                    assert loops(module)[name].__module__ == module.__name__, (loop, name)
    assert calls > 10


@pytest.mark.parametrize("compiler", [compiled, inlined])
def test_a_loop_is_compiled_where_no_folder_is_writable(compiler: Any) -> None:
    names: dict[str, Any] = {}
    exec(compile("def more(x): return x + 1", NOWHERE, "exec"), names)
    assert compiler(names["more"])(2) == 3


def test_meander_alone_loads_no_compiler() -> None:
    run = "import sys, meander, meander.testing; meander.Flow; meander.testing.TestFlow; "
    run += "sys.exit('numba' in sys.modules)"
    subprocess.run([sys.executable, "-c", run], check=True)
