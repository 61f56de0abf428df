"""Java: the search for a version that runs Kafka and Spark, and its installation where allowed.

Guarantee: a caller gets a Java of at least version `MIN_VERSION`, or a SetupError that names the
package. JAVA_HOME overrides the PATH, as for Spark. Cost: one start of a JVM, about 50 ms. The
Makefile calls `python -m meander.connectors.local_broker.java`. Only that call installs Java.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from meander.schemas.errors import SetupError

MIN_VERSION = 17
PACKAGES = ("openjdk-17-jre-headless", "openjdk-21-jre-headless")
"""Debian's suitable packages. The first one in a release is installed."""


def java() -> str:
    """Return the path of the Java to run. Raise SetupError where it is missing or too old."""
    remedy = f"install the package {PACKAGES[0]} (on Fedora java-{MIN_VERSION}-openjdk-headless)"
    home = os.environ.get("JAVA_HOME")
    found = str(Path(home, "bin", "java")) if home else shutil.which("java")
    if found is None:
        raise SetupError("Java", f"{MIN_VERSION} or newer is wanted, and none is installed", remedy)
    try:
        answer = subprocess.run([found, "-version"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        cause = f"{found} does not run: {error}"
        raise SetupError("Java", cause, "correct JAVA_HOME or " + remedy) from error
    version = major_version(answer.stderr)
    if version < MIN_VERSION:
        cause = f"{MIN_VERSION} or newer is wanted, {found} is version {version}"
        raise SetupError("Java", cause, remedy + ", or set JAVA_HOME")
    return found


def major_version(text: str) -> int:
    """Return the major version from the output of `java -version`; 0 where it cannot be read.

    >>> major_version('openjdk version "17.0.15" 2025-04-15')
    17
    >>> major_version('java version "1.8.0_402"'), major_version('openjdk version "21" 2023-09-19')
    (8, 21)
    """
    match = re.search(r'version "(?:1\.)?(\d+)', text)
    return int(match[1]) if match else 0


def install() -> None:
    """Install Java on Debian. The caller has checked that it may."""
    subprocess.run(["apt-get", "update", "--quiet"], check=True)
    for package in PACKAGES:
        known = subprocess.run(["apt-cache", "show", package], capture_output=True, check=False)
        if known.returncode == 0:
            command = ["apt-get", "install", "--yes", "--no-install-recommends", package]
            environ = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
            subprocess.run(command, check=True, env=environ)
            return
    raise SetupError(
        "Java", f"this Debian has none of {', '.join(PACKAGES)}", "install one by hand"
    )


def main() -> int:
    """Find Java, or install it on Debian as root. Return 0, or 2 where it is missing."""
    try:
        try:
            java()
        except SetupError:
            if not (Path("/etc/debian_version").exists() and os.geteuid() == 0):
                raise
            install()
            java()
    except SetupError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except subprocess.CalledProcessError as error:
        print(SetupError("Java", f"its installation failed ({error})"), file=sys.stderr)
        return SetupError.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
