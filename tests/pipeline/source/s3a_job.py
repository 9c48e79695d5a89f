"""A stream from a topic to a table on object storage, checkpoint included, through `s3a`.

    python s3a_job.py BOOTSTRAP TOPIC BUCKET JAR,...

BUCKET is `s3://NAME` on the server that AWS_ENDPOINT_URL names. The result is one line of JSON.
"""

import json
import os
import sys

from pyspark.sql import SparkSession


def main():
    bootstrap, topic, bucket, jars = sys.argv[1:]
    os.environ["PYSPARK_PYTHON"] = sys.executable
    s3a = {
        "endpoint": os.environ["AWS_ENDPOINT_URL"],
        "endpoint.region": os.environ["AWS_REGION"],
        "access.key": os.environ["AWS_ACCESS_KEY_ID"],
        "secret.key": os.environ["AWS_SECRET_ACCESS_KEY"],
        "path.style.access": "true",
    }
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.jars", jars)
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.log.level", "ERROR")
        .config(map={f"spark.hadoop.fs.s3a.{name}": value for name, value in s3a.items()})
        .getOrCreate()
    )
    place = bucket.replace("s3://", "s3a://")
    query = (
        spark.readStream.format("klamm")
        .options(**{"kafka.bootstrap.servers": bootstrap, "subscribe": topic})
        .option("startingOffsets", "earliest")
        .load()
        .selectExpr("cast(cast(value as string) as long) number")
        .writeStream.format("parquet")
        .option("checkpointLocation", f"{place}/checkpoint")
        .trigger(availableNow=True)
        .start(f"{place}/numbers")
    )
    query.awaitTermination()
    rows = spark.read.parquet(f"{place}/numbers").collect()
    print(json.dumps({"numbers": sorted(row.number for row in rows)}))
    spark.stop()


if __name__ == "__main__":
    main()
