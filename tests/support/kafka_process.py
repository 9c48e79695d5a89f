"""Apache Kafka's broker as a process, from the jars that KAFKA_LIBS names."""

from pathlib import Path

#: Small enough for several on one machine, and quick to start.
JVM = ("-Xms128m", "-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")

LOG4J = """\
log4j.rootLogger=INFO, stdout
log4j.appender.stdout=org.apache.log4j.ConsoleAppender
log4j.appender.stdout.layout=org.apache.log4j.PatternLayout
log4j.appender.stdout.layout.ConversionPattern=[%d{ISO8601}] %p %m (%c)%n
"""


def kafka_command(libs: Path, file: Path) -> list[str]:
    """The command line that runs Apache Kafka's broker with this `server.properties`."""
    log4j = file.with_name("log4j.properties")
    log4j.write_text(LOG4J)
    logging = f"-Dlog4j.configuration=file:{log4j}"
    return ["java", *JVM, logging, "-cp", f"{libs}/*", "kafka.Kafka", str(file)]
