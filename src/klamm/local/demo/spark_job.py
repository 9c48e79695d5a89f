"""A Spark job as a user would write it: it streams a topic to Parquet files.

    python -m klamm.local.demo.spark_job BOOTSTRAP_SERVERS TOPIC FOLDER

It needs no connector's jar: `format("klamm")` comes with the package. Runs until it is stopped.
"""

import signal
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, Self

from klamm.processes import Child, last_words, tied_command

_NUMBERS: Final = "numbers"
_CHECKPOINT: Final = "checkpoint"


class SparkJob:
    """The job in a process of its own, and the records that it has written so far."""

    def __init__(self, bootstrap_servers: str, topic: str) -> None:
        self._folder = TemporaryDirectory(prefix="klamm-spark-job-")
        folder = Path(self._folder.name)
        self._log = folder / "spark.log"
        self._numbers = folder / _NUMBERS
        job = ("-P", "-m", __name__, bootstrap_servers, topic, str(folder))
        self._child = Child(tied_command(sys.executable, *job), self._log, "spark job")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._folder.cleanup()

    @property
    def is_alive(self) -> bool:
        return not self._child.ended.is_set()

    def read(self) -> dict[int, list[int]]:
        """The numbers that it has read, by partition, in the order of their offsets."""
        from pyarrow import dataset

        found: dict[int, list[int]] = {}
        files = [str(path) for path in self._numbers.glob("*.parquet")]
        if files:
            rows = dataset.dataset(files, format="parquet").to_table()
            for row in rows.sort_by("offset").to_pylist():
                found.setdefault(row["partition"], []).append(row["number"])
        return found

    def last_words(self) -> str:
        """The last lines of its output, which have the reason for its end."""
        return last_words(self._log)

    def stop(self) -> None:
        """Kill the job and its child processes."""
        self._child.send_to_group(signal.SIGKILL)
        self._child.ended.wait()


def run_job(bootstrap_servers: str, topic: str, folder: Path) -> None:
    """Write the numbers of the topic's records to Parquet, with partition and offset."""
    from klamm.pipeline.session import spark_session

    with spark_session("local[1]", progress=False, little=True) as spark:
        records = (
            spark.readStream.format("klamm")
            .option("kafka.bootstrap.servers", bootstrap_servers)
            .option("subscribe", topic)
            .option("startingOffsets", "earliest")
            .load()
        )
        numbers = records.selectExpr(
            "partition", "offset", "CAST(CAST(value AS STRING) AS LONG) AS number"
        )
        query = (
            numbers.writeStream.foreachBatch(
                # Files appear complete, so that the tour can count the records meanwhile.
                lambda batch, _: batch.write.mode("append").parquet(str(folder / _NUMBERS))
            )
            .option("checkpointLocation", str(folder / _CHECKPOINT))
            .trigger(processingTime="2 seconds")
            .start()
        )
        query.awaitTermination()


if __name__ == "__main__":
    run_job(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
