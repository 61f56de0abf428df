"""Settings: the later source wins, what is wrong is one sentence, no secret is ever shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from meander.app.config.settings import HIDDEN, Settings
from meander.schemas.errors import SetupError


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "meander.toml"
    path.write_text(
        'bootstrap = "file:1"\n'
        "[kafka]\n"
        '"client.id" = "file"\n'
        'security.protocol = "plaintext"\n'
        "linger.ms = 7\n"
        "enable.ssl.certificate.verification = false\n"
    )
    return path


def test_file_then_environment_then_flags_and_the_later_wins(file: Path) -> None:
    environ = {"MEANDER_BOOTSTRAP": "environ:2", "MEANDER_KAFKA__LINGER__MS": "8", "HOME": "/"}
    settings = Settings.load(file, environ, ["linger.ms=9", "acks = all"], "flag:3,flag:4")

    assert settings.shown() == [
        ("acks", "all", "--set"),
        ("bootstrap.servers", "flag:3,flag:4", "--bootstrap"),
        ("client.id", "file", str(file)),
        ("enable.ssl.certificate.verification", "false", str(file)),
        ("linger.ms", "9", "--set"),
        ("security.protocol", "plaintext", str(file)),
    ]
    assert settings.bootstrap == settings.kafka()["bootstrap.servers"] == "flag:3,flag:4"
    assert Settings.load(file, environ).bootstrap == "environ:2"
    assert Settings.load(file, {}).bootstrap == "file:1"


def test_without_any_source_the_broker_is_the_local_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert Settings.load(None, {}).shown() == [("bootstrap.servers", "127.0.0.1:9092", "default")]
    assert Settings.load(None, {}, local="127.0.0.1:19123").shown() == [
        ("bootstrap.servers", "127.0.0.1:19123", "local broker")
    ]


def test_a_broker_that_is_named_wins_over_the_local_one(file: Path) -> None:
    assert Settings.load(file, {}, local="127.0.0.1:19123").bootstrap == "file:1"
    environ = {"MEANDER_BOOTSTRAP": "environ:2"}
    assert Settings.load(None, environ, local="127.0.0.1:19123").bootstrap == "environ:2"


def test_a_meander_toml_here_is_read_without_being_named(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(file.parent)
    assert Settings.load(None, {}).bootstrap == "file:1"


def test_two_names_of_one_setting_are_one_setting() -> None:
    environ = {"MEANDER_KAFKA__SASL__MECHANISM": "PLAIN"}
    settings = Settings.load(None, environ, ["sasl.mechanisms=SCRAM-SHA-256"])
    assert settings.kafka()["sasl.mechanisms"] == "SCRAM-SHA-256"
    assert "sasl.mechanism" not in settings.kafka()


SECRETS = [
    "sasl.password=pssst",
    "ssl.key.password=pssst",
    "ssl.keystore.password=pssst",
    "ssl.key.pem=pssst",
    "sasl.oauthbearer.client.secret=pssst",
    "sasl.oauthbearer.config=principal=pssst",
]


@pytest.mark.parametrize("flag", SECRETS)
def test_a_secret_is_passed_on_and_never_shown(flag: str) -> None:
    settings = Settings.load(None, {}, [flag])

    assert any("pssst" in value for value in settings.kafka().values())
    shown = f"{settings!r} {settings} {settings.shown()} {settings.values}"
    assert "pssst" not in shown
    assert HIDDEN in shown


@pytest.mark.parametrize(
    ("flag", "sentence"),
    [
        ("foo.bar=1", "setting 'foo.bar' (--set): no such setting; librdkafka's CONFIG"),
        ("linger.ms=soon", "setting 'linger.ms' (--set): Invalid value"),
        ("acks=-9", "setting 'acks' (--set): Configuration property"),
        ("error_cb=f", "setting 'error_cb' (--set): its value is a function of a program"),
        ("bootstrap=a b", "setting 'bootstrap.servers' (--set): 'a b' is not host:port; write"),
        ("bootstrap.servers=a:0", "setting 'bootstrap.servers' (--set): 'a:0' is not host:port"),
        ("bootstrap=a:1,", "setting 'bootstrap.servers' (--set): '' is not host:port"),
        ("bootstrap=http://me:pssst@a:1", "setting 'bootstrap.servers' (--set): 'http://*"),
        ("=5", "--set: it has no 'name=value'; write --set sasl.username=me."),
        ("pssst", "--set: it has no 'name=value'; write --set sasl.username=me."),
        ("sasl.jaas.config=password='pssst'", "setting 'sasl.jaas.config' (--set): its value is"),
        ("foo.secret=pssst", "setting 'foo.secret' (--set): no such setting"),
    ],
)
def test_a_flag_that_librdkafka_would_not_take_is_one_sentence(flag: str, sentence: str) -> None:
    with pytest.raises(SetupError) as raised:
        Settings.load(None, {}, [flag])
    assert str(raised.value).startswith(sentence)
    assert "pssst" not in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("bootstrap = ", "it is not TOML (Invalid value"),
        ("bootstrap = 5", "'bootstrap': input should be a valid string; it may hold"),
        ("[kafak]\na = 1", "'kafak' is not known here; it may hold 'bootstrap'"),
        ("[kafka]\nlinger.ms = [1]", "kafka.linger.ms is a list; write a text"),
        ("sasl.password = 'pssst'", "'sasl' is not known here"),
    ],
)
def test_a_malformed_file_is_one_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "other.toml"
    path.write_text(text)
    with pytest.raises(SetupError) as raised:
        Settings.load(path, {})
    assert str(raised.value).startswith(f"file {path}: {sentence}")
    assert "pssst" not in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_named_file_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="absent.toml: it cannot be read .No such file"):
        Settings.load(tmp_path / "absent.toml", {})


@pytest.mark.parametrize("variable", ["MEANDER_KAFKA_SASL_PASSWORD", "MEANDER_KAFKA__"])
def test_a_misspelt_variable_is_named(variable: str) -> None:
    with pytest.raises(SetupError, match=f"environment {variable}: .*two underscores") as raised:
        Settings.load(None, {variable: "pssst"})
    assert "pssst" not in str(raised.value)


TOGETHER = {
    "plain": [
        "security.protocol=SASL_SSL", "sasl.mechanisms=PLAIN", "sasl.username=me",
        "sasl.password=secret",
    ],
    "scram": [
        "security.protocol=SASL_PLAINTEXT", "sasl.mechanisms=SCRAM-SHA-512", "sasl.username=me",
        "sasl.password=secret",
    ],
}  # fmt: skip


@pytest.mark.parametrize("flags", TOGETHER.values(), ids=TOGETHER)
def test_settings_that_are_right_only_together_are_taken(flags: list[str]) -> None:
    kafka = Settings.load(None, {}, flags).kafka()
    assert kafka["sasl.password"] == "secret"
    assert {f"{name}={kafka[name]}" for name in kafka if name != "bootstrap.servers"} == set(flags)


def test_among_settings_that_belong_together_the_wrong_one_is_named() -> None:
    with pytest.raises(SetupError, match=r"setting 'linger.ms' \(--set\)") as raised:
        Settings.load(None, {}, [*TOGETHER["plain"], "linger.ms=soon"])
    assert "secret" not in str(raised.value)
