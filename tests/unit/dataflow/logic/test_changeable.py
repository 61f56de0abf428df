"""A version loads only from a class that a user has written for it, with parameters of its types;
the error names the operator, the cause and the remedy."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from meander import ChangeableLogic
from meander.dataflow.control.logic_change import LogicVersion
from meander.dataflow.logic.changeable import load, version_of
from meander.schemas.errors import SetupError

HOME = __name__
SUBJECT = "operator 'alert'"


class Above(ChangeableLogic, frozen=True):
    limit: float = 2.0

    def __call__(self, value: float) -> bool:
        return value > self.limit


class Rich(ChangeableLogic, frozen=True):
    """A logic with parameters of many types."""

    weights: dict[int, float]
    pair: tuple[int, str]
    words: frozenset[str]
    since: datetime
    seal: bytes
    bound: int | None = None


class Rules:
    """A namespace that is no logic itself."""

    class Below(ChangeableLogic, frozen=True):
        limit: float = 0.0


NO_CLASS = "name a class of the flow's module, or module:Class of a module beside it"
NO_LOGIC = "derive it from meander.ChangeableLogic"
UNLOADABLE = {
    "no such class": ("Missing", "cannot be imported: AttributeError: module", NO_CLASS),
    "no such module": ("nowhere:Above", "cannot be imported: ModuleNotFoundError", NO_CLASS),
    "no name": ("", "cannot be imported: AttributeError", NO_CLASS),
    "no module before the colon": (":Above", "cannot be imported: ValueError", NO_CLASS),
    "no class behind the colon": (f"{HOME}:", "cannot be imported: AttributeError", NO_CLASS),
    "a class of a function": ("f.<locals>.Above", "cannot be imported: AttributeError", NO_CLASS),
    "another class": ("Rules", "is not a subclass of ChangeableLogic", NO_LOGIC),
    "a function": ("os:system", "is not a subclass of ChangeableLogic", NO_LOGIC),
    "a class of the library": ("builtins:dict", "is not a subclass of ChangeableLogic", NO_LOGIC),
}


def home_in(folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the module of a flow in a folder."""
    name = f"flow_{folder.name}"
    write_module(folder, monkeypatch, name, "")
    import_module(name)
    return name


@pytest.mark.parametrize("name", UNLOADABLE)
def test_a_version_without_a_class_of_its_own_is_refused(name: str) -> None:
    version, cause, remedy = UNLOADABLE[name]
    with pytest.raises(SetupError) as refused:
        load(LogicVersion.of(version, {}), HOME, SUBJECT)
    error = str(refused.value)
    assert error.startswith(f"{SUBJECT}: its logic {version!r} {cause}")
    assert error.endswith(f"; {remedy}.")


MISFITS: dict[str, tuple[dict[str, object], str]] = {
    "a text for a number": ({"limit": "3"}, "Expected `float`, got `str` - at `$.limit`"),
    "a truth value for a number": ({"limit": True}, "Expected `float`, got `bool`"),
    "null for a number": ({"limit": None}, "Expected `float`, got `null`"),
    "a number that no float holds": ({"limit": 10**400}, "Number out of range - at `$.limit`"),
    "an unknown parameter": ({"limit": 3, "most": 4}, "contains unknown field `most`"),
}


@pytest.mark.parametrize("name", MISFITS)
def test_a_class_takes_parameters_of_its_fields_types_alone(name: str) -> None:
    parameters, cause = MISFITS[name]
    with pytest.raises(SetupError) as refused:
        load(LogicVersion.of("Above", parameters), HOME, SUBJECT)
    error = str(refused.value)
    assert error.startswith(f"{SUBJECT}: 'Above' does not take the parameters {{")
    assert cause in error
    assert error.endswith("; give it values for limit.")


def test_a_required_parameter_is_named() -> None:
    with pytest.raises(SetupError, match="missing required field `weights`"):
        load(LogicVersion.of("Rich", {}), HOME, SUBJECT)


def test_a_class_without_fields_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = home_in(tmp_path, monkeypatch)
    write_module(tmp_path, monkeypatch, "fieldless", "class Plain(ChangeableLogic, frozen=True): 0")
    with pytest.raises(SetupError, match="give it values for no parameters"):
        load(LogicVersion.of("fieldless:Plain", {"x": 1}), home, SUBJECT)


def test_a_version_loads_from_the_module_of_the_flow() -> None:
    assert load(LogicVersion.of("Above", {"limit": 3}), HOME, SUBJECT) == Above(limit=3)


def test_a_version_loads_from_a_module_beside_the_flow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = home_in(tmp_path, monkeypatch)
    source = "class Later(ChangeableLogic, frozen=True):\n    limit: int = 1"
    write_module(tmp_path, monkeypatch, "beside", source)
    later: Any = load(LogicVersion.of("beside:Later", {"limit": 5}), home, SUBJECT)
    assert (type(later).__name__, later.limit) == ("Later", 5)


def test_a_version_loads_from_a_nested_class() -> None:
    assert load(LogicVersion("Rules.Below"), HOME, SUBJECT) == Rules.Below()


@pytest.mark.parametrize("source", ["raise SystemExit(3)", "import nowhere", "1 +"])
def test_a_module_that_fails_is_named_with_its_error(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = home_in(tmp_path, monkeypatch)
    write_module(tmp_path, monkeypatch, f"fails{len(source)}", source)
    with pytest.raises(SetupError, match=r"cannot be imported: \w+(: .+)?; name a class"):
        load(LogicVersion(f"fails{len(source)}:Later"), home, SUBJECT)


def test_a_module_elsewhere_is_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command would choose any code of the machine."""
    write_module(tmp_path, monkeypatch, "elsewhere", "raise SystemExit(3)")
    with pytest.raises(SetupError, match="'elsewhere' does not lie beside the flow's module"):
        load(LogicVersion("elsewhere:Later"), HOME, SUBJECT)


def test_a_class_of_the_flows_module_has_a_bare_name() -> None:
    assert str(version_of(Above(limit=3), HOME)) == "Above(limit=3)"
    assert str(version_of(Rules.Below(), HOME)) == "Rules.Below(limit=0.0)"


def test_a_class_of_another_module_has_its_module_in_its_name() -> None:
    assert version_of(Above(), "flow").name == f"{HOME}:Above"


@pytest.mark.parametrize("home", [HOME, "flow"])
def test_the_version_of_a_logic_loads_as_that_logic(home: str) -> None:
    rich = Rich(
        weights={1: 0.5, 2: 1e300},
        pair=(7, "caf\u00e9"),
        words=frozenset({"to", "be"}),
        since=datetime(2013, 1, 1, 5, tzinfo=UTC),
        seal=b"\xc1\0",
        bound=1 << 62,
    )
    for logic in (rich, Above(), Rules.Below(limit=-0.5)):
        assert load(version_of(logic, home), home, SUBJECT) == logic


class Anything(ChangeableLogic, frozen=True):
    value: Any


@pytest.mark.parametrize("value", [float("nan"), float("inf"), len, object(), {"a": {1, "b"}.pop}])
def test_a_parameter_that_json_cannot_express_is_refused(
    value: object | Callable[..., object],
) -> None:
    with pytest.raises(SetupError, match=r"logic 'Anything': JSON cannot express its parameters: "):
        version_of(Anything(value=value), HOME)


def test_equal_logics_have_equal_versions() -> None:
    assert version_of(Above(), HOME) == version_of(Above(limit=2.0), HOME)
    assert version_of(Above(), HOME) != version_of(Above(limit=3), HOME)


def test_only_a_class_with_an_upgrade_upgrades_states() -> None:
    class Upgraded(Above, frozen=True):
        def upgrade(self, state: Any, before: ChangeableLogic) -> object:
            return state

    assert (Above().upgrades, Upgraded().upgrades) == (False, True)


def write_module(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, source: str) -> None:
    (folder / f"{name}.py").write_text(f"from meander import ChangeableLogic\n{source}\n")
    monkeypatch.syspath_prepend(str(folder))
