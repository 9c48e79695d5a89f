"""What every version of Spark has to do with format("klamm"), as a process of its own.

    python version_job.py BOOTSTRAP TOPIC FOLDER

It runs where there is nothing but that pyspark and what klamm depends on, so it imports no test.
The result is one line of JSON.
"""

import json
import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession


def main():
    bootstrap, topic, folder = sys.argv[1:]
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.log.level", "OFF")
        .getOrCreate()
    )
    servers = {"kafka.bootstrap.servers": bootstrap}

    def load(name=topic, **options):
        return spark.read.format("klamm").options(**servers, subscribe=name, **options).load()

    def numbers(frame):
        rows = frame.selectExpr("cast(cast(value as string) as int) number").collect()
        return sorted(row.number for row in rows)

    def write(values):
        frame = spark.range(values.start, values.stop).selectExpr(
            "cast(id as string) key",
            "cast(id as string) value",
            "array(named_struct('key', 'h', 'value', cast('1' as binary))) headers",
        )
        frame.write.format("klamm").mode("append").options(**servers, topic=topic).save()

    def stream(**options):
        reader = spark.readStream.format("klamm").options(**servers, subscribe=topic)
        return reader.options(startingOffsets="earliest", **options).load()

    def run(frame):
        query = (
            frame.selectExpr("key", "value", f"'{topic}-copy' topic")
            .writeStream.format("klamm")
            .options(**servers, checkpointLocation=f"{folder}/checkpoint")
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return sum(progress["numInputRows"] > 0 for progress in query.recentProgress)

    def refusal(attempt):
        try:
            attempt()
        except Exception as error:
            if "Traceback" in str(error):
                raise
            return next(line for line in str(error).splitlines() if "Error: " in line)
        return None

    found = {}
    write(range(100))
    found["read"] = numbers(load()) == list(range(100))
    rows = load(includeHeaders="true", minPartitions="3").collect()
    found["headers"] = {row.headers[0].key for row in rows} == {"h"} and len(rows) == 100
    some = spark.read.format("klamm").schema("offset bigint, value binary")
    found["columns"] = some.options(**servers, subscribe=topic).load().columns
    run(stream())
    write(range(100, 150))
    run(stream())
    found["copied"] = numbers(load(f"{topic}-copy")) == list(range(150))
    write(range(150, 250))
    found["limited"] = refusal(lambda: found.update(batches=run(stream(maxOffsetsPerTrigger="60"))))
    run(stream())
    found["all copied"] = numbers(load(f"{topic}-copy")) == list(range(250))
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    found["filtered"] = refusal(
        lambda: found.update(kept=load(pushFilters="true").where("offset < 5").count())
    )
    found["unknown"] = refusal(lambda: load(startingOffset="earliest").collect())
    found["partitions"] = (
        spark.read.format("klamm").options(**servers, table="partitions").load()
        .where(f"topic = '{topic}'").count()
    )  # fmt: skip
    found["offset log"] = sorted(path.name for path in Path(folder, "checkpoint").iterdir())
    print(json.dumps(found))
    spark.stop()


if __name__ == "__main__":
    main()
