"""The loader of the user's flow module: at the driver, and from the bytes it sends on executors.

Guarantees that executors need no installation of the module: the `.py` files next to it, and the
packages there with all files, travel as bytes. A module in a package loads under its dotted name,
so its relative imports work. Any other module gets a unique name, so one process can load several
files called `flow.py`. Cost: the bytes of the folder, at most `MAX_BYTES`.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from importlib.machinery import SOURCE_SUFFIXES, FileFinder, SourceFileLoader
from itertools import chain
from pathlib import Path, PurePosixPath
from types import ModuleType
from typing import Never, NoReturn

from meander.dataflow.api.flow import Flow
from meander.dataflow.operators.error_policy import describe, failure
from meander.schemas.errors import MeanderError, SetupError

MAX_BYTES = 16 * 2**20
"""The limit of bytes of all files that travel with a module."""


@dataclass(slots=True)
class _Loaded:
    """A record of the last loaded flow: its folder, and the top-level modules in it."""

    root: str = ""
    names: frozenset[str] = frozenset()


_last = _Loaded()


class _Sources(SourceFileLoader):
    """A loader that compiles a file each time, so the driver runs the source that it sends.

    Python's cache would accept another file of the same size and the same second.
    """

    def path_stats(self, path: str) -> Never:
        raise OSError(f"{path}: this loader uses no compiled files")


@dataclass(frozen=True, slots=True)
class SourceFiles:
    """A source of a flow: its module and all files that it may import, by path below a folder."""

    entry: str
    """The module below that folder, such as `my_flow.py` or `pack/flows.py:NAME`."""
    files: dict[str, bytes]

    def unpack(self, folder: Path) -> Path:
        """Write all files below a folder; return the module."""
        for name, content in self.files.items():
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
        return folder / self.entry


def add_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write the files that a flow's folder does not have, so that imports find them. Raises
    MeanderError for a path that leads out of the folder."""
    for name, content in files.items():
        target = folder / name
        if not target.resolve().is_relative_to(folder.resolve()):
            raise MeanderError("the files of the flow", f"{name!r} lies outside its folder")
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
            # A package that came since has not been looked into.
            finder = FileFinder(str(target.parent), (_Sources, SOURCE_SUFFIXES))
            sys.path_importer_cache[str(target.parent)] = finder
    importlib.invalidate_caches()


def collect(module: Path) -> SourceFiles:
    """Collect the source of a flow. Raises SetupError where it is missing or too large."""
    file, name = file_and_flow(module)
    file = file.resolve()
    if file.suffix != ".py" or not file.is_file():
        cause = "there is no such Python file"
        raise SetupError(f"flow module {file}", cause, "name the .py file that defines the flow")
    root = _root(file)
    files: dict[str, bytes] = {}
    size = 0
    for path in _travelling(root, file):
        files[PurePosixPath(path.relative_to(root)).as_posix()] = content = path.read_bytes()
        size += len(content)
        if size > MAX_BYTES:
            raise SetupError(
                f"flow module {file}",
                f"the Python files beside it are more than {MAX_BYTES >> 20} MiB",
                "put the flow into a folder of its own",
            )
    entry = PurePosixPath(file.relative_to(root)).as_posix()
    return SourceFiles(f"{entry}:{name}" if name else entry, files)


def beside(module: Path, files: Iterable[Path]) -> dict[str, bytes]:
    """Return files by their path below the folder of a module. Raises SetupError where one lies
    outside it."""
    root = _root(file_and_flow(module)[0].resolve())
    found = dict[str, bytes]()
    for file in files:
        if not file.resolve().is_relative_to(root):
            raise SetupError(
                f"file {file}", f"it lies outside {root}, so no worker gets it",
                "put it beside the flow's module",
            )  # fmt: skip
        name = file.resolve().relative_to(root)
        found[PurePosixPath(name).as_posix()] = file.read_bytes()
    return found


def file_and_flow(module: Path) -> tuple[Path, str]:
    """Return the file of a module and the name of its flow; '' where the file has only one.

    >>> file_and_flow(Path("graphs.py:bfs")), file_and_flow(Path("counts.py"))
    ((PosixPath('graphs.py'), 'bfs'), (PosixPath('counts.py'), ''))
    """
    file, colon, name = module.name.partition(".py:")
    return (module.with_name(f"{file}.py"), name) if colon else (module, "")


def load_flow(module: Path) -> Flow:
    """Import a module and return its flow: the only one, or that of the name. Raises SetupError
    where that fails."""
    file, name = file_and_flow(module)
    file = file.resolve()
    try:
        with _no_silent_exit(file):
            loaded = _load(file)
    except MeanderError:
        raise
    except failure() as error:
        reason = describe(error)
        cause = f"it cannot be imported: {reason}{_line(file, error)}"
        raise SetupError(f"flow module {file}", cause, _correction(reason)) from error
    flows = {id(value): value for value in vars(loaded).values() if isinstance(value, Flow)}
    found = [flow for flow in flows.values() if name in ("", flow.name)]
    if len(found) != 1:
        cause = f"it defines {len(found) or 'no'} flow{'s' * (len(found) > 1)}"
        cause += f" of the name {name!r}" * bool(name)
        remedy = _remedy(file, [flow.name for flow in flows.values()])
        raise SetupError(f"flow module {file}", cause, remedy)
    found[0].module = loaded.__name__
    return found[0]


def _correction(reason: str) -> str:
    """Return how a module that cannot be imported is corrected.

    >>> _correction("TypeError: Stream.map() takes 2 positional arguments but 3 were given")
    "correct it: give names and options by keyword, such as name='price'"
    >>> _correction("KeyError: 'price'")
    'correct it'
    """
    call, _, rest = reason.partition("()")
    if call.startswith("TypeError: ") and "Stream." in call and "positional argument" in rest:
        return "correct it: give names and options by keyword, such as name='price'"
    return "correct it"


def _remedy(file: Path, names: list[str]) -> str:
    """Return how a module with flows of these names would define one."""
    if not names:
        return "assign a Flow at its top level: flow = Flow('name')"
    if len(set(names)) < len(names):
        return "give each flow a name of its own"
    return f"name one: {', '.join(f'{file.name}:{name}' for name in sorted(names))}"


@contextlib.contextmanager
def _no_silent_exit(file: Path) -> Iterator[None]:
    """Raise SetupError where the module calls `os._exit`, which would end Meander without a word.
    A child process of the module may call it."""
    end, loading = os._exit, os.getpid()

    def refuse(status: int) -> NoReturn:
        if os.getpid() != loading:
            end(status)
        cause = f"it ends the process when it is imported: os._exit({status})"
        raise SetupError(f"flow module {file}", cause, "remove that call")

    os._exit = refuse
    try:
        yield
    finally:
        os._exit = end


def _line(file: Path, error: BaseException) -> str:
    """Return in words the line of the module at which an error was raised."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == str(file)]
    return f" (line {frames[-1].lineno})" if frames else ""


def _load(file: Path) -> ModuleType:
    root = _root(file)
    _import_from(root, {path.parent for path in _travelling(root, file)})
    if root != file.parent:
        name = ".".join(file.relative_to(root).with_suffix("").parts)
        sys.modules.pop(name, None)
        return importlib.import_module(name)
    name = f"meander_flow_{file.stem}_{sha256(str(file).encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(name, file, loader=_Sources(name, str(file)))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Before it runs: dataclasses look their module up by name.
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _import_from(root: Path, folders: set[Path]) -> None:
    """Import from this root first, and no longer from the root of the last flow."""
    for name in [name for name in sys.modules if name.partition(".")[0] in _last.names]:
        del sys.modules[name]
    if _last.root in sys.path:
        sys.path.remove(_last.root)
    sys.path.insert(0, str(root))
    for folder in map(str, folders):
        sys.path_importer_cache[folder] = FileFinder(folder, (_Sources, SOURCE_SUFFIXES))
    here = {path.stem for path in root.glob("*.py")}
    here |= {path.parent.name for path in root.glob("*/__init__.py")}
    # Modules loaded before the flow are not its own, such as Meander itself.
    _last.root, _last.names = str(root), frozenset(here - sys.modules.keys())


def _root(file: Path) -> Path:
    """Return the folder from which imports start: above all packages that contain the file."""
    folder = file.parent
    while (folder / "__init__.py").exists():
        folder = folder.parent
    return folder


def _travelling(root: Path, file: Path) -> Iterator[Path]:
    if root != file.parent:
        yield from _package(root / file.relative_to(root).parts[0])
        return
    packages = (path.parent for path in root.glob("*/__init__.py"))
    yield from chain(root.glob("*.py"), chain.from_iterable(map(_package, packages)))


def _package(folder: Path) -> Iterator[Path]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return (path for path in files if "__pycache__" not in path.parts)
