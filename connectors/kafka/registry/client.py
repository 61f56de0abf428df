"""The client of a registry: one per process and registry, over that of confluent-kafka.

Guarantees that a registry that does not answer is told apart from one that does not know a schema:
the first raises FormatUnavailableError, the second ValueError. Settings may hold secrets, so no
message or log line contains them. Cost: one request per schema id and process; an unknown id is
asked for again after some seconds.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from meander.connectors.kafka.formats import FormatUnavailableError
from meander.schemas.errors import MeanderError, SetupError

if TYPE_CHECKING:
    from confluent_kafka.schema_registry import Schema, SchemaRegistryClient

T = TypeVar("T")
VARIABLES = "MEANDER_REGISTRY__"
"""The start of the names of environment variables with settings; two underscores stand for a dot.
"""
UNKNOWN_SECONDS = 5.0
"""The seconds for which an unknown id stays unknown."""
IN_MEMORY = "mock://"
"""The start of the URL of a registry in the memory of a process."""
MAGIC = 0
ID_BYTES = 5
"""The bytes before a payload: a zero, and the id of its schema."""
_DEFAULTS = {"timeout": 10, "max.retries": 2}
_UNAVAILABLE = 500
_DENIED = 401, 403


def split(data: bytes) -> tuple[int, bytes]:
    r"""Return the schema id and the payload of a record. Raise ValueError for other bytes.

    >>> split(b"\0\0\0\0\7ab")
    (7, b'ab')
    """
    if len(data) < ID_BYTES or data[0] != MAGIC:
        raise ValueError(f"its {len(data)} bytes begin with no schema id")
    return int.from_bytes(data[1:ID_BYTES], "big"), data[ID_BYTES:]


def head(id: int) -> bytes:
    r"""Return the bytes before a payload of a schema.

    >>> head(7)
    b'\x00\x00\x00\x00\x07'
    """
    return bytes([MAGIC]) + id.to_bytes(ID_BYTES - 1, "big")


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a registry, and the settings of its client."""

    url: str
    settings: Mapping[str, Any] = field(repr=False)

    def __str__(self) -> str:
        return f"registry {self.url}"


class RegistryClient:
    """A client of one registry."""

    def __init__(self, address: Address) -> None:
        """Raise SetupError where the client cannot be made."""
        self._address = address
        self._client = _open(address)
        self._unknown: dict[int, tuple[float, str]] = {}

    def expect_reachable(self, place: str) -> None:
        """Raise SetupError where the registry does not answer."""
        if not self._address.url.startswith(IN_MEMORY):
            self._at_start(place, self._client.get_schema_types)

    def register(self, place: str, subject: str, schema: Schema) -> None:
        """Register a schema. Raise SetupError where the registry refuses it."""
        self._at_start(place, lambda: self._client.register_schema(subject, schema))

    def version_of(self, place: str, subject: str, schema: Schema) -> int:
        """Return the version of a registered schema. Raise SetupError where there is none."""
        found = self._at_start(place, lambda: self._client.lookup_schema(subject, schema))
        return int(found.version or 0)

    def id_of(self, place: str, subject: str, schema: Schema) -> int:
        """Return the id of a registered schema. Raise SetupError where there is none."""
        found = self._at_start(place, lambda: self._client.lookup_schema(subject, schema))
        return int(found.schema_id or 0)

    def schema(self, id: int) -> Schema:
        """Return the schema of an id. Raise ValueError for an unknown id, and
        FormatUnavailableError where the registry does not answer."""
        until, cause = self._unknown.get(id, (0.0, ""))
        if time.monotonic() < until:
            raise ValueError(cause)
        return self._ask(lambda: self._client.get_schema(id), f"schema id {id}", id)

    def referenced(self, subject: str, version: int) -> Schema:
        """Return a schema to which another one refers, as `schema` does."""
        asked = f"version {version} of subject {subject!r}"
        return self._ask(lambda: self._client.get_version(subject, version), asked).schema

    def _ask(self, call: Callable[[], T], asked: str, id: int | None = None) -> T:
        from confluent_kafka.schema_registry import SchemaRegistryError

        try:
            return call()
        except SchemaRegistryError as error:
            if error.http_status_code < _UNAVAILABLE and error.http_status_code not in _DENIED:
                cause = f"{self._address} does not know {asked}: {error.error_message}"
                if id is not None:
                    self._unknown[id] = time.monotonic() + UNKNOWN_SECONDS, cause
                raise ValueError(cause) from error
            told = f"it answers {error.http_status_code}: {error.error_message}"
        except Exception as error:  # noqa: BLE001 (the client passes on what its transport raises)
            told = f"it does not answer: {type(error).__name__}"
        raise FormatUnavailableError(
            str(self._address), f"{told}, as {asked} is needed", "start it and the flow again"
        )

    def _at_start(self, place: str, call: Callable[[], T]) -> T:
        from confluent_kafka.schema_registry import SchemaRegistryError

        try:
            return call()
        except SchemaRegistryError as error:
            told = f"{self._address} answers {error.http_status_code}: {error.error_message}"
            raise SetupError(place, told, _remedy(error.http_status_code)) from error
        except MeanderError:
            raise
        except Exception as error:  # the client passes on what its transport raises
            raise SetupError(
                place,
                f"{self._address} does not answer: {type(error).__name__}: {error}",
                "start the registry, or correct its URL",
            ) from error


def _remedy(status: int) -> str:
    if status in _DENIED:
        return "set MEANDER_REGISTRY__BASIC__AUTH__USER__INFO=user:password, or ask for access"
    if status == 404:
        return "register the schema, or leave out register=False"
    if status == 409:
        return "change the schema so that it is compatible, or the compatibility of its subject"
    return "correct the schema or the registry"


def _open(address: Address) -> SchemaRegistryClient:
    try:
        from confluent_kafka.schema_registry import SchemaRegistryClient
    except ImportError as error:
        raise SetupError(
            str(address), f"its client cannot be imported: {error}",
            "install it with: pip install 'meander[registry]'",
        ) from error  # fmt: skip
    settings = _DEFAULTS | dict(address.settings) | _of_environment() | {"url": address.url}
    try:
        return SchemaRegistryClient.new_client(settings)
    except (ValueError, TypeError) as error:
        names = ", ".join(sorted(settings))
        raise SetupError(
            str(address), f"its client refuses the settings {names}",
            "give settings of confluent-kafka's SchemaRegistryClient",
        ) from error  # fmt: skip


def _of_environment() -> dict[str, str]:
    return {
        name.removeprefix(VARIABLES).lower().replace("__", "."): value
        for name, value in os.environ.items()
        if name.startswith(VARIABLES)
    }


_clients: dict[str, RegistryClient] = {}


def client_of(address: Address) -> RegistryClient:
    """Return the client of this process. A registry in memory lives as long as the process."""
    # All settings lead to the same registry in memory.
    settings = {} if address.url.startswith(IN_MEMORY) else address.settings
    key = repr((address.url, sorted(settings.items())))
    if key not in _clients:
        _clients[key] = RegistryClient(address)
    return _clients[key]
