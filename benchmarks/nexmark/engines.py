"""Other engines, fetched once into the cache of Kafka's jars, outside of the project.

Invariant: no archive or jar of Flink is used unless its SHA-256 is pinned here. Flink's libraries
come from PyPI, its Kafka connector from Maven Central. bytewax and Quix Streams have a virtual
environment each, of pinned versions. Cost: about 500 MB and two minutes the first time.
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from meander.connectors.local_broker.kafka_jars import Jar, cache, fetched, sha256
from meander.schemas.errors import SetupError

FLINK = "2.2.1"
ARCHIVE = f"apache_flink_libraries-{FLINK}.tar.gz"
ARCHIVE_DIGEST = "eec27ffa86d01184de7f5ab668c479c83cdb75ebc7fba8091307da4f1a9d3348"
CONNECTOR = Jar(
    "5605c691d11a501382c383fecba37a7a552467da5ab7ba904ef5d6f3d62c5616",
    "org.apache.flink", "flink-sql-connector-kafka", "5.0.0-2.2",
)  # fmt: skip
PACKAGES = {
    "bytewax": ["bytewax==0.21.1", "confluent-kafka==2.15.0"],
    "quixstreams": ["quixstreams==3.28.1"],
}


def flink() -> list[Path]:
    """Return the jars of Flink. Raise SetupError where they cannot be fetched."""
    folder = cache().parent / f"flink-{FLINK}"
    if not folder.exists():
        _fetch_flink(folder)
    jars = fetched(folder, [CONNECTOR], f"Apache Flink {FLINK}")
    return sorted(jars.glob("*.jar"))


def _fetch_flink(folder: Path) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix="resolving-") as name:
        work = Path(name)
        # The archive has no wheel. pip builds its metadata alone.
        _pip(sys.executable, "download", "--no-deps", "--no-binary", ":all:", "--dest", name,
             f"apache-flink-libraries=={FLINK}")  # fmt: skip
        if (found := sha256(work / ARCHIVE)) != ARCHIVE_DIGEST:
            raise SetupError(ARCHIVE, f"SHA-256 {ARCHIVE_DIGEST} is pinned, {found} was fetched",
                             "look for a proxy that alters downloads")  # fmt: skip
        made = work / "jars"
        made.mkdir()
        with tarfile.open(work / ARCHIVE) as archive:
            for member in archive:
                path = Path(member.name)
                if path.parts[1:3] == ("deps", "lib") and path.suffix == ".jar":
                    member.name = path.name
                    archive.extract(member, made, filter="data")
        made.rename(folder)


def python(engine: str) -> Path:
    """Return the interpreter that has a Python engine. Raise SetupError where that cannot be."""
    folder = cache().parent / "-".join(PACKAGES[engine][0].split("=="))
    found = folder / "bin" / "python"
    if not (folder / "complete").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        _pip(str(found), "install", *PACKAGES[engine])
        (folder / "complete").touch()
    return found


def _pip(interpreter: str, *words: str) -> None:
    command = [interpreter, "-m", "pip", "--quiet", "--disable-pip-version-check", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        cause = f"pip has failed: {(done.stdout + done.stderr)[-400:]}"
        raise SetupError(words[-1], cause, "check the network")
