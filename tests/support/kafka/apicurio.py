"""Apicurio's registry on this machine: fetched once from Maven Central, verified, in memory.

The archive is that of the Compose file's version, and lies in the cache beside the jars of Kafka.
"""

from __future__ import annotations

import fcntl
import hashlib
import subprocess
import tarfile
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka.schema_registry import SchemaRegistryClient

from meander.connectors.local_broker.broker import free_port
from meander.connectors.local_broker.java import java
from meander.connectors.local_broker.kafka_jars import cache
from tests.support.kafka.topics import until

VERSION = "3.0.9"
DIGEST = "2b28181501a20cbf6efcd77f9b7153908fc01f3d3a7c32024c0bd9e1b04c8a43"
ARCHIVE = (
    "https://repo1.maven.org/maven2/io/apicurio/apicurio-registry-app/"
    f"{VERSION}/apicurio-registry-app-{VERSION}-all.tar.gz"
)


def fetched() -> Path:
    """Return the folder of the registry, which the first call fetches."""
    folder = cache().parent / f"apicurio-{VERSION}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            with tempfile.TemporaryDirectory(dir=folder.parent) as name:
                _fetch(Path(name))
                (Path(name) / "app").rename(folder)
    return folder


def _fetch(folder: Path) -> None:
    archive = folder / "archive.tar.gz"
    with urllib.request.urlopen(ARCHIVE, timeout=60) as answer, archive.open("wb") as file:
        while block := answer.read(1 << 20):
            file.write(block)
    with archive.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    assert found == DIGEST, f"{ARCHIVE} has SHA-256 {found}"
    with tarfile.open(archive) as tar:
        tar.extractall(folder / "app", filter="data")


@contextmanager
def apicurio() -> Iterator[str]:
    """Yield the URL of a registry, whose schemas must be compatible with those before."""
    folder, port = fetched(), free_port()
    options = ["-Xmx400m", "-Dquarkus.http.host=127.0.0.1", f"-Dquarkus.http.port={port}"]
    jar = folder / f"apicurio-registry-app-{VERSION}-runner.jar"
    url = f"http://127.0.0.1:{port}/apis/ccompat/v7"
    with (
        tempfile.TemporaryFile() as log,
        subprocess.Popen([java(), *options, "-jar", str(jar)], stdout=log, stderr=log) as process,
    ):
        try:
            until(lambda: process.poll() is not None or _answers(url), "the registry answers")
            assert process.poll() is None, "the registry has ended"
            client = SchemaRegistryClient({"url": url})
            client.set_compatibility(level="BACKWARD")
            yield url
        finally:
            process.kill()


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/schemas/types", timeout=5):
            return True
    except OSError:
        return False
