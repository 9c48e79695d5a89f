"""Jars for comparison and interoperation, from Maven Central: `make kafka` for Apache Kafka's.

They go to `.setup`, each set to a folder of its own; nothing of klamm needs them to run. Prints the
folder of Apache Kafka's.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

VERSION = "3.9.1"
ARTIFACTS = (
    f"org.apache.kafka:kafka_2.13:{VERSION}",
    f"org.apache.kafka:kafka-tools:{VERSION}",
    "org.slf4j:slf4j-reload4j:1.7.36",
)
SETUP = Path(__file__).parent.parent / ".setup"


class NoMavenError(Exception):
    """Maven is not installed."""


def main() -> None:
    print(libs())


def libs() -> Path:
    """The folder with Apache Kafka's jars, fetched if need be; $KAFKA_LIBS comes first."""
    given = os.environ.get("KAFKA_LIBS")
    if given:
        return Path(given)
    try:
        return fetch_jars("kafka", ARTIFACTS)
    except NoMavenError:
        sys.exit("Apache Kafka's jars come from Maven Central: install Maven, or set KAFKA_LIBS.")


def fetch_jars(name: str, artifacts: Iterable[str], without: Iterable[str] = ()) -> Path:
    """The folder with artifacts (GROUP:NAME:VERSION) and what they need, fetched if need be.

    `without` names artifacts (GROUP:NAME, with * for any) that are not needed.
    """
    home = SETUP / name
    folder = home / "libs"
    if (home / ".complete").exists():
        return folder
    if shutil.which("mvn") is None:
        raise NoMavenError("Jars come from Maven Central: install Maven.")
    home.mkdir(parents=True, exist_ok=True)
    (home / "pom.xml").write_text(_pom(name, artifacts, without))
    subprocess.run(
        ["mvn", "-q", "dependency:copy-dependencies", f"-DoutputDirectory={folder}"],
        cwd=home,
        check=True,
        stdout=sys.stderr,
    )
    (home / ".complete").touch()
    return folder


def _pom(name: str, artifacts: Iterable[str], without: Iterable[str]) -> str:
    exclusions = "".join(f"<exclusion>{_named(each)}</exclusion>" for each in without)
    dependencies = "".join(
        f"<dependency>{_named(each)}<exclusions>{exclusions}</exclusions></dependency>"
        for each in artifacts
    )
    return (
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        f"<groupId>klamm</groupId><artifactId>{name}-libs</artifactId><version>1</version>"
        f"<dependencies>{dependencies}</dependencies></project>\n"
    )


def _named(artifact: str) -> str:
    tags = ("groupId", "artifactId", "version")
    return "".join(
        f"<{tag}>{part}</{tag}>" for tag, part in zip(tags, artifact.split(":"), strict=False)
    )


if __name__ == "__main__":
    main()
