"""The jars of Apache Kafka, fetched once from Maven Central and verified at every start.

Invariant: no jar runs unless `kafka_jars.sha256` (part of this package) pins its SHA-256, from the
first download on. The folder of the jars is ~/.cache/meander/kafka-VERSION, or below MEANDER_CACHE.
Ivy, which pyspark contains, resolves them. Cost: about 45 MB the first time, then 0.2 s to verify.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

from meander.connectors.local_broker.home import home, make_folder
from meander.connectors.local_broker.java import java
from meander.schemas.errors import SetupError
from meander.schemas.log_lines import LineLogger

KAFKA = "4.3.1"
"""The version of the local broker. The container and the Compose file run the same version."""

log = LineLogger(__name__)

# Pinned jars need no metadata: Ivy fetches the jars alone, in seconds instead of half a minute.
_SETTINGS = """\
<ivysettings>
  <settings defaultResolver="central"/>
  <property name="ivy.checksums" value=""/>
  <resolvers><ibiblio name="central" m2compatible="true" usepoms="false"/></resolvers>
</ivysettings>
"""
_MODULE = """\
<ivy-module version="2.0">
  <info organisation="meander" module="kafka"/>
  <dependencies>
{dependencies}
  </dependencies>
</ivy-module>
"""


@dataclass(frozen=True, slots=True)
class Jar:
    """A jar that one line of `kafka_jars.sha256` pins: digest, then organisation:name:revision."""

    digest: str
    organisation: str
    module: str
    revision: str

    @property
    def name(self) -> str:
        """Return the name of its file."""
        return f"{self.module}-{self.revision}.jar"


OnProgress = Callable[[int, int], None]
"""A callback that receives the number of fetched jars and the total."""


def _ignore_progress(_: int, __: int) -> None:
    """Ignore the progress."""


def cache() -> Path:
    """Return the folder of the jars on this machine."""
    chosen = os.environ.get("MEANDER_CACHE")
    return (Path(chosen) if chosen else home() / ".cache" / "meander") / f"kafka-{KAFKA}"


def kafka_jars(on_progress: OnProgress = _ignore_progress) -> Path:
    """Fetch missing jars; return the folder of the verified jars. Raise SetupError where the fetch
    fails.

    `on_progress` receives the number of fetched jars and the total during the download.
    """
    return fetched(cache(), pins(), f"Apache Kafka {KAFKA}", on_progress)


def fetched(
    folder: Path, jars: list[Jar], product: str, on_progress: OnProgress = _ignore_progress
) -> Path:
    """Fetch those jars of a product that `folder` lacks; return the folder once all of them are
    verified. Raise SetupError where the fetch fails."""
    make_folder(folder, "name a folder in MEANDER_CACHE")
    with (folder.parent / f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        wrong = mismatches(folder, jars)
        corrupt = [jar.name for jar in wrong if (folder / jar.name).exists()]
        if corrupt:
            log.warning("jars_rejected", folder=str(folder), jars=",".join(corrupt))
        if wrong:
            log.info("fetch_started", product=product, jars=len(wrong), folder=str(folder))
            _fetch(folder, wrong, product, on_progress)
    return folder


def pins() -> list[Jar]:
    """Return every jar that the broker needs."""
    lines = (
        files("meander.connectors.local_broker")
        .joinpath("kafka_jars.sha256")
        .read_text()
        .splitlines()
    )
    return [Jar(digest, *place.split(":")) for digest, place in map(str.split, lines)]


def mismatches(folder: Path, jars: list[Jar]) -> list[Jar]:
    """Return the jars that `folder` lacks or has with other content."""
    return [jar for jar in jars if sha256(folder / jar.name) != jar.digest]


def _fetch(folder: Path, jars: list[Jar], product: str, on_progress: OnProgress) -> None:
    """Resolve jars beside `folder`, and move them there once they are verified."""
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix="resolving-") as name:
        work = Path(name)
        _resolve(work, jars, product, on_progress)
        for jar in mismatches(work / "jars", jars):
            found = sha256(work / "jars" / jar.name) or "nothing"
            cause = f"SHA-256 {jar.digest} is pinned, {found} was fetched"
            remedy = "look for a proxy that alters downloads"
            raise SetupError(f"{jar.name} of {product}", cause, remedy)
        for jar in jars:
            (work / "jars" / jar.name).replace(folder / jar.name)


def _resolve(work: Path, jars: list[Jar], product: str, on_progress: OnProgress) -> None:
    """Let Ivy fetch the jars into `work`/jars."""
    dependencies = "\n".join(
        f'    <dependency org="{jar.organisation}" name="{jar.module}" rev="{jar.revision}"/>'
        for jar in jars
    )
    (work / "settings.xml").write_text(_SETTINGS)
    (work / "module.xml").write_text(_MODULE.format(dependencies=dependencies))
    command = [
        java(), "-Xmx256m", "-jar", str(_ivy()), "-settings", "settings.xml", "-cache", "cache",
        "-ivy", "module.xml", "-retrieve", "jars/[artifact]-[revision].[ext]",
    ]  # fmt: skip
    log_file = work / "ivy.log"
    with log_file.open("w") as output:
        ivy = subprocess.Popen(command, cwd=work, stdout=output, stderr=output)
        while _runs(ivy):
            on_progress(len(list((work / "cache").rglob("*.jar"))), len(jars))
    if ivy.returncode != 0:
        lines = [line.strip(": \t") for line in log_file.read_text().splitlines()]
        causes = [line for line in lines if "not found" in line or "Host" in line or "rror" in line]
        cause = (
            f"its jars could not be fetched from Maven Central ({(causes or ['Ivy failed'])[0]})"
        )
        remedy = f"check the network, or copy the jars of another machine into {cache().parent}"
        raise SetupError(product, cause, remedy)


def _runs(process: subprocess.Popen[bytes]) -> bool:
    """Wait briefly for a child's end; return whether it still runs."""
    try:
        process.wait(0.1)
    except subprocess.TimeoutExpired:
        return True
    return False


def _ivy() -> Path:
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise SetupError("Ivy", "pyspark, which contains it, is not installed", "run 'make venv'")
    found = sorted(Path(spec.origin).parent.glob("jars/ivy-*.jar"))
    if not found:
        raise SetupError("Ivy", f"{Path(spec.origin).parent}/jars holds none", "run 'make venv'")
    return found[-1]


def sha256(path: Path) -> str:
    """Return the digest of a file, '' where there is none."""
    if not path.is_file():
        return ""
    with path.open("rb") as jar:
        return hashlib.file_digest(jar, "sha256").hexdigest()
