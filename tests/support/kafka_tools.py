"""Apache Kafka's command line tools, by the names of their scripts."""

import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from tests.support.mixed_cluster import PATIENCE_S

CLASSES = {
    "kafka-topics": "org.apache.kafka.tools.TopicCommand",
    "kafka-configs": "kafka.admin.ConfigCommand",
    "kafka-console-producer": "kafka.tools.ConsoleProducer",
    "kafka-console-consumer": "org.apache.kafka.tools.consumer.ConsoleConsumer",
    "kafka-consumer-groups": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "kafka-leader-election": "org.apache.kafka.tools.LeaderElectionCommand",
    "kafka-reassign-partitions": "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
    "kafka-log-dirs": "org.apache.kafka.tools.LogDirsCommand",
    "kafka-delete-records": "org.apache.kafka.tools.DeleteRecordsCommand",
    "kafka-get-offsets": "org.apache.kafka.tools.GetOffsetShell",
    "kafka-broker-api-versions": "kafka.admin.BrokerApiVersionsCommand",
    "kafka-transactions": "org.apache.kafka.tools.TransactionsCommand",
    "transactional-message-copier": "org.apache.kafka.tools.TransactionalMessageCopier",
    "kafka-dump-log": "kafka.tools.DumpLogSegments",
}

#: A tool lives for a moment: what counts is how soon it has started.
JVM = ("-Xmx192m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")

LOG4J = """\
log4j.rootLogger=WARN, stderr
log4j.appender.stderr=org.apache.log4j.ConsoleAppender
log4j.appender.stderr.Target=System.err
log4j.appender.stderr.layout=org.apache.log4j.PatternLayout
log4j.appender.stderr.layout.ConversionPattern=%p %m (%c)%n
"""


class Tools:
    """The tools, told which cluster to work on."""

    def __init__(self, libs: Path, directory: Path, bootstrap: str = "") -> None:
        self._libs = libs
        self._directory = directory
        self._bootstrap = bootstrap

    def run(self, tool: str, *arguments: str, stdin: str = "", succeeds: bool = True) -> str:
        """What the tool printed; unless told otherwise it must have gone well."""
        log4j = self.file(LOG4J)
        done = subprocess.run(
            [
                *("java", *JVM, f"-Dlog4j.configuration=file:{log4j}"),
                *("-cp", f"{self._libs}/*", CLASSES[tool]),
                *(("--bootstrap-server", self._bootstrap) if self._bootstrap else ()),
                *arguments,
            ],
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_S,
        )
        told = f"{tool} {' '.join(arguments)}\n{done.stdout}\n{done.stderr}"
        assert (done.returncode == 0) is succeeds, told
        return done.stdout + done.stderr

    def file(self, content: str | dict[str, Any]) -> Path:
        """A file for a tool to read."""
        handle, name = tempfile.mkstemp(dir=self._directory)
        with open(handle, "w") as file:
            file.write(content if isinstance(content, str) else json.dumps(content))
        return Path(name)
