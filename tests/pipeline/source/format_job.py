"""One run of a query that reads with one format or another, into files.

    python format_job.py FORMAT BOOTSTRAP TOPIC FOLDER [JAR,...]

It runs where there is nothing but pyspark and what klamm depends on, so it imports no test. The
result is one line of JSON: the values that have been read by all runs so far.
"""

import json
import os
import sys

from pyspark.sql import SparkSession


def main():
    form, bootstrap, topic, folder, *jars = sys.argv[1:]
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.log.level", "OFF")
    )
    if jars:
        builder = builder.config("spark.jars", jars[0])
    spark = builder.getOrCreate()
    query = (
        spark.readStream.format(form)
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .load()
        .selectExpr("cast(cast(value as string) as int) number")
        .writeStream.format("parquet")
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(availableNow=True)
        .start(f"{folder}/rows")
    )
    query.awaitTermination()
    rows = spark.read.parquet(f"{folder}/rows").collect()
    print(json.dumps(sorted(row.number for row in rows)))
    spark.stop()


if __name__ == "__main__":
    main()
