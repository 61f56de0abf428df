"""The jars of Apache Kafka, fetched once from Maven Central and verified at every start.

Invariant: no jar is ever run whose SHA-256 is not the one that `kafka_jars.sha256` (part of this
package) pins; that holds for the first download too. They rest in ~/.cache/meander/kafka-VERSION,
or below MEANDER_CACHE. Resolved by Ivy, which pyspark ships. Cost: the first time about 45 MB;
then 0.2 s to verify.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import shutil
import subprocess
import tempfile
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

from connectors.java import java
from schemas.errors import SetupError

KAFKA = "4.3.1"
"""The version of the local broker; the container path and the Compose file run the same."""

log = logging.getLogger(__name__)

_SETTINGS = """\
<ivysettings>
  <settings defaultResolver="central"/>
  <property name="ivy.checksums" value=""/>
  <resolvers><ibiblio name="central" m2compatible="true"/></resolvers>
</ivysettings>
"""
_MODULE = f"""\
<ivy-module version="2.0">
  <info organisation="meander" module="kafka"/>
  <configurations><conf name="default"/></configurations>
  <dependencies>
    <dependency org="org.apache.kafka" name="kafka_2.13" rev="{KAFKA}" conf="default->default"/>
    <dependency org="org.apache.kafka" name="kafka-tools" rev="{KAFKA}" conf="default->master"/>
    <dependency org="org.apache.logging.log4j" name="log4j-slf4j-impl" rev="2.25.4"
                conf="default->master"/>
  </dependencies>
</ivy-module>
"""


def cache() -> Path:
    """Where the jars lie on this machine."""
    given = os.environ.get("MEANDER_CACHE")
    return (Path(given) if given else Path.home() / ".cache" / "meander") / f"kafka-{KAFKA}"


def kafka_jars() -> Path:
    """The folder of verified jars, filled first where it must be; SetupError where it cannot."""
    folder, pinned = cache(), pins()
    folder.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        wrong = mismatches(folder, pinned)
        if wrong:
            corrupt = [name for name in wrong if (folder / name).exists()]
            if corrupt:
                log.warning("corrupt in %s, fetched again: %s", folder, ", ".join(corrupt))
            log.info("fetching Apache Kafka %s, %d jars, into %s", KAFKA, len(wrong), folder)
            _fetch(folder, wrong, pinned)
    return folder


def pins() -> dict[str, str]:
    """The SHA-256 of every jar by its name."""
    lines = files("connectors").joinpath("kafka_jars.sha256").read_text().splitlines()
    return {name: digest for digest, name in (line.split() for line in lines)}


def mismatches(folder: Path, pinned: dict[str, str]) -> list[str]:
    """The jars of `pinned` that `folder` lacks or has with other content."""
    return [name for name, digest in pinned.items() if _sha256(folder / name) != digest]


def _fetch(folder: Path, wanted: list[str], pinned: dict[str, str]) -> None:
    """Resolve everything beside `folder`, move in what is wanted and right."""
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix="resolving-") as name:
        work = Path(name)
        _resolve(work)
        wrong = [jar for jar in mismatches(work / "jars", pinned) if jar in wanted]
        if wrong:
            found = _sha256(work / "jars" / wrong[0]) or "nothing"
            cause = f"SHA-256 {pinned[wrong[0]]} is pinned, {found} was fetched"
            remedy = "look for a proxy that alters downloads"
            raise SetupError(f"{wrong[0]} of Apache Kafka {KAFKA}", cause, remedy)
        for jar in wanted:
            (work / "jars" / jar).replace(folder / jar)


def _resolve(work: Path) -> None:
    """Have Ivy bring all jars into `work`/jars."""
    (work / "settings.xml").write_text(_SETTINGS)
    (work / "module.xml").write_text(_MODULE)
    command = [
        java(), "-Xmx256m", "-jar", str(_ivy()), "-settings", "settings.xml", "-cache", "cache",
        "-ivy", "module.xml", "-retrieve", "jars/[artifact]-[revision](-[classifier]).[ext]",
    ]  # fmt: skip
    done = subprocess.run(command, cwd=work, capture_output=True, text=True, check=False)
    shutil.rmtree(work / "cache", ignore_errors=True)
    if done.returncode != 0:
        said = [line.strip(": \t") for line in (done.stdout + done.stderr).splitlines()]
        causes = [line for line in said if "not found" in line or "Host" in line or "rror" in line]
        cause = (
            f"its jars could not be fetched from Maven Central ({(causes or ['Ivy failed'])[0]})"
        )
        remedy = f"check the network, or copy the jars of another machine into {cache()}"
        raise SetupError(f"Apache Kafka {KAFKA}", cause, remedy)


def _ivy() -> Path:
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise SetupError("Ivy", "pyspark, which ships it, is not installed", "run 'make venv'")
    found = sorted(Path(spec.origin).parent.glob("jars/ivy-*.jar"))
    if not found:
        raise SetupError("Ivy", f"{Path(spec.origin).parent}/jars holds none", "run 'make venv'")
    return found[-1]


def _sha256(path: Path) -> str:
    """The digest of a file, '' where there is none."""
    if not path.is_file():
        return ""
    with path.open("rb") as jar:
        return hashlib.file_digest(jar, "sha256").hexdigest()
