"""A job with Spark's own defaults: topics to a table, with something going wrong on the way.

    python shipped_job.py MODE MASTER BOOTSTRAP TOPIC FOLDER

The topic is read once and as a stream; MASTER may be the address of a Spark Connect server. The
result is one line of JSON: for each partition the number of records, the sum of their values and
the last offset, which depend neither on the order of rows nor on who read them.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

from pyspark.sql import SparkSession

MODES = ("plain", "failing", "killed", "speculating")
SETTINGS = {
    "spark.executor.memory": "512m",
    "spark.sql.shuffle.partitions": "8",
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.log.level": "OFF",
    # JVMs that live for a minute do not earn back what the second compiler costs.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1",
}
SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.3",
    "spark.speculation.minTaskRuntime": "100ms",
}


def main():
    mode, master, bootstrap, topic, folder = sys.argv[1:]
    assert mode in MODES
    os.environ["PYSPARK_PYTHON"] = sys.executable
    settings = SETTINGS | (SPECULATION if mode == "speculating" else {})
    if master.startswith("sc://"):
        spark = SparkSession.builder.remote(master).create()
        spark.conf.set("spark.sql.shuffle.partitions", "8")
    else:
        spark = SparkSession.builder.config(map=settings).master(master).getOrCreate()
    options = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic, "minPartitions": "8"}
    rows = spark.read.format("klamm").options(**options).load()
    splits = rows.selectExpr("spark_partition_id() id").distinct().count()
    assert splits >= 4, splits
    print(
        json.dumps(
            {
                "batch": summed_up(disturbed(mode, rows)),
                "stream": stream(spark, mode, options, folder),
            }
        )
    )
    spark.stop()


def stream(spark, mode, options, folder):
    """The same by a stream, whose table a sink makes that takes each batch once."""
    rows = spark.readStream.format("klamm").options(**options, startingOffsets="earliest").load()
    query = (
        disturbed(mode, rows)
        .writeStream.format("parquet")
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(availableNow=True)
        .start(f"{folder}/rows")
    )
    query.awaitTermination()
    return summed_up(spark.read.parquet(f"{folder}/rows"))


def disturbed(mode, rows):
    return rows.mapInArrow(lambda batches: disturb(mode, batches), rows.schema)


def summed_up(rows):
    table = (
        rows.selectExpr("partition", "offset", "cast(cast(value as string) as long) number")
        .distinct()
        .groupBy("partition")
        .agg({"number": "sum", "offset": "max", "*": "count"})
        .orderBy("partition")
    )
    return {"rows": rows.count(), "table": [list(row) for row in table.collect()]}


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
