"""Settings of a Kafka cluster: from a file, the environment and flags, where a later one overrides.

Guarantees that librdkafka accepts each name and value that `load` returns; any other setting raises
a SetupError of one sentence. Neither `repr`, `shown` nor an error contains a secret; only `kafka`
does. Cost: a millisecond per setting.

    meander.toml:   bootstrap = "broker:9092"
                    [kafka]
                    security.protocol = "SASL_SSL"
    environment:    MEANDER_BOOTSTRAP=broker:9092  MEANDER_KAFKA__SASL__USERNAME=me
    flags:          --bootstrap broker:9092  --set sasl.username=me
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from meander.app.config.settings_file import read_settings
from meander.schemas.errors import SetupError

BOOTSTRAP = "bootstrap.servers"
DEFAULT = "127.0.0.1:9092"
HIDDEN = "********"
OWN = {
    "group.id": "a flow has a group of its own, meander.<flow>, as its workers share no partitions",
    "transactional.id": "each worker of a flow has one of its own, <flow>.worker-<number>",
}
"""Settings that no user can change, with the reasons."""

# librdkafka knows these by two names. Under one name, a later source can override an earlier one.
_ALIASES = {"bootstrap": BOOTSTRAP, "metadata.broker.list": BOOTSTRAP}
_ALIASES |= {"sasl.mechanism": "sasl.mechanisms", "request.required.acks": "acks"}
_SECRET = re.compile(r"passw|passphrase|secret|token|jaas|oauthbearer|credential|\.pem$")
_USER_IN_URL = re.compile(r"//[^/@\s]+@")
_ADDRESS = re.compile(r"(?:[A-Za-z_]+://)?(?:[\w.-]+|\[[\da-fA-F:]+\])(?::(?P<port>\d{1,5}))?")
_ENVIRON = "MEANDER_KAFKA"
_quiet = logging.getLogger(f"{__name__}.trial")
_quiet.addHandler(logging.NullHandler())
_quiet.propagate = False

Leaf = str | int | float | bool
Table = Mapping[str, "Leaf | Table"]


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting of librdkafka with its origin; its value may be a secret."""

    value: str = field(repr=False)
    origin: str


@dataclass(frozen=True, slots=True, repr=False)
class Settings:
    """A set of all settings, by librdkafka's names.

    >>> settings = Settings.load(None, {"MEANDER_KAFKA__SASL__PASSWORD": "pssst"}, ["acks=all"])
    >>> settings
    Settings(acks=all, bootstrap.servers=127.0.0.1:9092, sasl.password=********)
    >>> settings.shown()[0]
    ('acks', 'all', '--set')
    """

    values: Mapping[str, Setting]

    @classmethod
    def load(
        cls,
        file: Path | None,
        environ: Mapping[str, str],
        flags: Sequence[str] = (),
        bootstrap: str | None = None,
        local: str | None = None,
    ) -> Self:
        """Read file (`meander.toml` where None is named and it exists), environment and flags.

        `flags` are the `key=value` of each `--set`, and `bootstrap` is the value of `--bootstrap`.
        `local` is the address of a running local broker, the default. Raises SetupError for a
        missing or malformed file, an unknown name, or an invalid value.
        """
        nearest = Setting(local, "local broker") if local else Setting(DEFAULT, "default")
        values = {BOOTSTRAP: nearest}
        named = [("--bootstrap", BOOTSTRAP, bootstrap)] if bootstrap is not None else []
        for origin, name, value in (
            *_from_file(file),
            *_from_environ(environ),
            *(("--set", *_split(flag)) for flag in flags),
            *named,
        ):
            name = _ALIASES.get(name.lower(), name.lower())
            if name in OWN:
                raise SetupError(f"setting '{name}' ({origin})", OWN[name], "leave it out")
            values[name] = Setting(value, origin)
        _try_addresses(values[BOOTSTRAP])
        _try_all(values)
        return cls(dict(sorted(values.items())))

    @property
    def bootstrap(self) -> str:
        """The addresses of the cluster, host:port, separated by commas."""
        return self.values[BOOTSTRAP].value

    def kafka(self) -> dict[str, str]:
        """Return the settings for librdkafka, which may contain secrets."""
        return {name: setting.value for name, setting in self.values.items()}

    def shown(self) -> list[tuple[str, str, str]]:
        """Return name, value and origin of each setting, by name; secrets are hidden."""
        return [(name, redacted(name, s.value), s.origin) for name, s in self.values.items()]

    def __repr__(self) -> str:
        return f"Settings({', '.join(f'{name}={value}' for name, value, _ in self.shown())})"


def redacted(name: str, value: str) -> str:
    """Return a value as it may be shown, without secrets.

    >>> redacted("ssl.key.password", "x"), redacted("client.id", "http://me:pw@host:1")
    ('********', 'http://********@host:1')
    """
    return HIDDEN if _SECRET.search(name) else _USER_IN_URL.sub(f"//{HIDDEN}@", value)


def _from_file(file: Path | None) -> Iterator[tuple[str, str, str]]:
    read = read_settings(file)
    if read is None:
        return
    path, content = read
    if content.bootstrap is not None:
        yield str(path), BOOTSTRAP, content.bootstrap
    for name, value in _flat(f"file {path}", "", content.kafka):
        yield str(path), name, value


def _flat(subject: str, above: str, table: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """Yield the leaves of nested tables, with names joined by dots."""
    for key, value in table.items():
        name = f"{above}{key}"
        if isinstance(value, dict):
            yield from _flat(subject, f"{name}.", value)
        elif isinstance(value, bool):
            yield name, str(value).lower()
        elif isinstance(value, str | int | float):
            yield name, str(value)
        else:
            cause = f"kafka.{name} is a {type(value).__name__}"
            raise SetupError(subject, cause, "write a text, a number, true or false")


def _from_environ(environ: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    bootstrap = environ.get("MEANDER_BOOTSTRAP")
    if bootstrap:
        yield "environment MEANDER_BOOTSTRAP", BOOTSTRAP, bootstrap
    for variable, value in environ.items():
        if not variable.startswith(_ENVIRON):
            continue
        name = variable.removeprefix(f"{_ENVIRON}__").lower().replace("__", ".")
        if name == variable.lower() or not name:
            remedy = f"write {_ENVIRON}__SASL__USERNAME for sasl.username"
            cause = "a setting's name follows two underscores, and has two for each dot"
            raise SetupError(f"environment {variable}", cause, remedy)
        yield f"environment {variable}", name, value


def _split(flag: str) -> tuple[str, str]:
    name, equals, value = flag.partition("=")
    if not (equals and name.strip()):
        # The error does not repeat the flag, which may be a secret without a name.
        raise SetupError("--set", "it has no 'name=value'", "write --set sasl.username=me")
    return name.strip(), value.strip()


def _try_addresses(setting: Setting) -> None:
    for address in setting.value.split(","):
        match = _ADDRESS.fullmatch(address.strip())
        if match is None or not 0 < int(match["port"] or 9092) < 65_536:
            subject = f"setting '{BOOTSTRAP}' ({setting.origin})"
            cause = f"'{redacted(BOOTSTRAP, address)}' is not host:port"
            raise SetupError(subject, cause, "write host:port, more of them after commas")


def _try_all(values: Mapping[str, Setting]) -> None:
    """Pass all settings to librdkafka; raise SetupError for the setting that it rejects.

    Some settings are valid only together, such as those of SASL. The error names a setting without
    which librdkafka accepts all others, else a setting that it rejects alone.
    """
    if _refusal(values) is None:
        return
    others = [name for name in values if name != BOOTSTRAP]
    alone = {name: refusal for name in others if (refusal := _refusal({name: values[name]}))}
    to_blame = [name for name in alone if _refusal(_without(values, name)) is None]
    name = next(iter([*to_blame, *alone]), None)
    if name is not None:
        raise _refused(name, values[name], alone[name])
    raise SetupError(
        "the settings",
        f"librdkafka rejects them together: {_reason(values)}",
        "correct one of them",
    )


def _without(values: Mapping[str, Setting], name: str) -> dict[str, Setting]:
    return {other: setting for other, setting in values.items() if other != name}


def _reason(values: Mapping[str, Setting]) -> str:
    refusal = _refusal(values)
    secret = any(_SECRET.search(name) for name in values)
    return "it gives no reason" if secret or refusal is None else str(refusal)


def _refusal(values: Mapping[str, Setting]) -> Exception | None:
    try:
        AdminClient({name: setting.value for name, setting in values.items()}, logger=_quiet)
    except (TypeError, KafkaException) as error:
        return error
    return None


def _refused(name: str, setting: Setting, error: Exception) -> SetupError:
    subject = f"setting '{name}' ({setting.origin})"
    if not isinstance(error, KafkaException):
        return SetupError(subject, "its value is a function of a program, not a text")
    message = error.args[0].str().strip()
    cause = "its value is invalid" if _SECRET.search(name) else redacted(name, message)
    known = "No such configuration property" not in message
    remedy = "librdkafka's CONFIGURATION.md lists names and values"
    return SetupError(subject, cause if known else "no such setting", remedy)
