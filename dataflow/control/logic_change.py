"""The messages of the control plane that replace the logic of an operator while the flow runs.

A version of a logic is a class and its parameters. Versions travel as names and JSON, never as
code: each worker looks the class up in the files of the flow. Guarantees that a decoded message has
the right types. Cost: some microseconds per message.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

import msgpack

from meander.dataflow.control.strict_decoding import expect_count, expect_int


@dataclass(frozen=True, slots=True)
class LogicVersion:
    """A version of a logic: the name of its class, and its parameters as a JSON object.

    >>> version = LogicVersion.of("detectors:Detector", {"limit": 3.5, "above": True})
    >>> version.parameters
    '{"above": true, "limit": 3.5}'
    >>> str(version)
    'detectors:Detector(above=true, limit=3.5)'
    """

    name: str
    """The class, in the module of the flow or behind the name of another module and a colon."""
    parameters: str = "{}"
    """A JSON object with sorted keys, so equal versions have equal texts."""

    @staticmethod
    def of(name: str, parameters: Mapping[str, object]) -> LogicVersion:
        """Return the version of a class with these parameters, which JSON can express."""
        return LogicVersion(name, json.dumps(parameters, sort_keys=True, allow_nan=False))

    @property
    def values(self) -> dict[str, object]:
        """Return the parameters. Raises ValueError where their text is no JSON object."""
        try:
            found = json.loads(self.parameters)
        except RecursionError:
            raise ValueError("the parameters are nested too deeply") from None
        if not isinstance(found, dict):
            raise ValueError(f"{self.parameters!r} is no JSON object")  # noqa: TRY004 (it is data)
        return found

    def __str__(self) -> str:
        values = (f"{name}={json.dumps(value)}" for name, value in self.values.items())
        return f"{self.name}({', '.join(values)})"


@dataclass(frozen=True, slots=True)
class LogicUpdate:
    """What a command changes about a version.

    >>> version = LogicVersion.of("Above", {"limit": 3, "strict": True})
    >>> str(LogicUpdate(None, {"limit": 5}).of(version))
    'Above(limit=5, strict=true)'
    >>> str(LogicUpdate("Below", {"limit": 5}).of(version))
    'Below(limit=5)'
    """

    name: str | None
    """The class; None for that of the version before."""
    parameters: Mapping[str, object]

    def of(self, before: LogicVersion) -> LogicVersion:
        """Return the version that follows. Parameters keep their values where the class stays."""
        if self.name is None or self.name == before.name:
            return LogicVersion.of(before.name, before.values | dict(self.parameters))
        return LogicVersion.of(self.name, self.parameters)


@dataclass(frozen=True, slots=True)
class PrepareLogic:
    """An instruction that lets a worker load a version for an operator before it takes effect.

    >>> prepare = PrepareLogic(4, "alert", LogicVersion("Above"), LogicVersion("Below"))
    >>> PrepareLogic.from_bytes(prepare.to_bytes()) == prepare
    True
    """

    number: int
    """The number of the preparation, which the answer of the worker repeats."""
    operator: str
    before: LogicVersion
    version: LogicVersion

    def to_bytes(self) -> bytes:
        """Encode the instruction for the wire."""
        return bytes(msgpack.packb((self.number, self.operator, *_texts(self))))

    @staticmethod
    def from_bytes(data: bytes) -> PrepareLogic:
        """Decode `to_bytes`. Raises ValueError for other bytes."""
        number, operator, *texts = _fields(data, 6)
        return PrepareLogic(expect_count(number), _text(operator), *_versions(texts))


@dataclass(frozen=True, slots=True)
class LogicChange:
    """A decision: from the logical time `time` on, an operator applies another version.

    >>> change = LogicChange("r1", "alert", 7, LogicVersion("Above"), LogicVersion("Below"), 2)
    >>> LogicChange.from_bytes(change.to_bytes()) == change
    True
    """

    command: str
    """The id of the command that asked for it."""
    operator: str
    time: int
    before: LogicVersion
    """The version that applies to earlier times."""
    version: LogicVersion
    generation: int = 0
    """The number of changes of the operator that upgrade its states, up to this one."""
    offset: int = 0
    """The offset of the command on the control topic."""

    def to_bytes(self) -> bytes:
        """Encode the decision for the wire."""
        head = self.command, self.operator, self.time, self.generation, self.offset
        return bytes(msgpack.packb((*head, *_texts(self))))

    @staticmethod
    def from_bytes(data: bytes) -> LogicChange:
        """Decode `to_bytes`. Raises ValueError for other bytes."""
        command, operator, time, generation, offset, *texts = _fields(data, 9)
        before, version = _versions(texts)
        named = _text(command), _text(operator), expect_int(time)
        return LogicChange(*named, before, version, expect_count(generation), expect_count(offset))


def _fields(data: bytes, count: int) -> list[object]:
    fields = msgpack.unpackb(data)
    if type(fields) is list and len(fields) == count:
        return fields
    raise ValueError(f"{len(data)} bytes do not hold {count} fields")


def _texts(message: PrepareLogic | LogicChange) -> tuple[str, str, str, str]:
    before, version = message.before, message.version
    return before.name, before.parameters, version.name, version.parameters


def _versions(texts: list[object]) -> tuple[LogicVersion, LogicVersion]:
    one, its, other, others = map(_text, texts)
    return _version(one, its), _version(other, others)


def _version(name: str, parameters: str) -> LogicVersion:
    """Return a version. Raises ValueError where its parameters are no JSON object."""
    return LogicVersion.of(name, LogicVersion(name, parameters).values)


def _text(value: object) -> str:
    if type(value) is str:
        return value
    raise ValueError(f"{value!r} is no text")
