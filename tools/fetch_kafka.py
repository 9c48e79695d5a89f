"""Apache Kafka's jars for comparison and interoperation, from Maven Central: `make kafka`.

They go to `.setup/kafka/libs`; nothing of klamm needs them to run. Prints the folder.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

VERSION = "3.9.1"
ARTIFACTS = (
    ("org.apache.kafka", "kafka_2.13", VERSION),
    ("org.apache.kafka", "kafka-tools", VERSION),
    ("org.slf4j", "slf4j-reload4j", "1.7.36"),
)
HOME = Path(__file__).parent.parent / ".setup" / "kafka"


def main() -> None:
    print(libs())


def libs() -> Path:
    """The folder with the jars, fetched if need be; $KAFKA_LIBS comes first."""
    given = os.environ.get("KAFKA_LIBS")
    if given:
        return Path(given)
    folder = HOME / "libs"
    if (HOME / ".complete").exists():
        return folder
    if shutil.which("mvn") is None:
        sys.exit("Apache Kafka's jars come from Maven Central: install Maven, or set KAFKA_LIBS.")
    HOME.mkdir(parents=True, exist_ok=True)
    (HOME / "pom.xml").write_text(_pom())
    subprocess.run(
        ["mvn", "-q", "dependency:copy-dependencies", f"-DoutputDirectory={folder}"],
        cwd=HOME,
        check=True,
        stdout=sys.stderr,
    )
    (HOME / ".complete").touch()
    return folder


def _pom() -> str:
    dependencies = "".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId>"
        f"<version>{version}</version></dependency>"
        for group, artifact, version in ARTIFACTS
    )
    return (
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        "<groupId>klamm</groupId><artifactId>kafka-libs</artifactId><version>1</version>"
        f"<dependencies>{dependencies}</dependencies></project>\n"
    )


if __name__ == "__main__":
    main()
