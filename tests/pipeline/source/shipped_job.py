"""A job with Spark's own defaults: topics to a table, with something going wrong on the way.

    python shipped_job.py MODE BOOTSTRAP TOPIC

The result is one line of JSON: for each partition the number of records, the sum of their values
and the last offset, which depend neither on the order of rows nor on who read them.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

from pyspark.sql import SparkSession

MODES = ("plain", "failing", "killed", "speculating", "connect")
TWO_EXECUTORS = "local-cluster[2,2,1024]"
SETTINGS = {
    "spark.executor.memory": "512m",
    "spark.sql.shuffle.partitions": "8",
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.log.level": "OFF",
}
SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.3",
    "spark.speculation.minTaskRuntime": "100ms",
}


def main():
    mode, bootstrap, topic = sys.argv[1:]
    assert mode in MODES
    os.environ["PYSPARK_PYTHON"] = sys.executable
    settings = SETTINGS | (SPECULATION if mode == "speculating" else {})
    builder = SparkSession.builder.config(map=settings)
    builder = builder.remote("local[2]") if mode == "connect" else builder.master(TWO_EXECUTORS)
    spark = builder.getOrCreate()
    rows = (
        spark.read.format("klamm")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", topic)
        .option("minPartitions", 8)
        .load()
    )
    splits = rows.selectExpr("spark_partition_id() id").distinct().count()
    assert splits >= 4, splits
    disturbed = rows.mapInArrow(lambda batches: disturb(mode, batches), rows.schema)
    table = (
        disturbed.selectExpr("partition", "offset", "cast(cast(value as string) as long) number")
        .distinct()
        .groupBy("partition")
        .agg({"number": "sum", "offset": "max", "*": "count"})
        .orderBy("partition")
    )
    total = disturbed.count()
    print(json.dumps({"rows": total, "table": [list(row) for row in table.collect()]}))
    spark.stop()


def disturb(mode, batches):
    """Pass everything on; the first attempt of the first task has an accident half-way."""
    from pyspark import TaskContext

    context = TaskContext.get()
    is_first = context is not None and context.partitionId() == 0 and context.attemptNumber() == 0
    for batch in batches:
        yield batch
        if is_first and mode == "failing":
            raise RuntimeError("once")
        if is_first and mode == "killed":
            kill_executor()
        if is_first and mode == "speculating":
            time.sleep(3)


def kill_executor():
    """The JVM that started this worker's daemon."""
    stat = Path(f"/proc/{os.getppid()}/stat").read_text()
    os.kill(int(stat.rsplit(")", 1)[1].split()[1]), signal.SIGKILL)


if __name__ == "__main__":
    main()
