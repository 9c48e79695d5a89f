"""One side of the comparison in `bench/ingest.py`, as a process: topics into Parquet, timed.

    python bench/_ingest_job.py SIDE BOOTSTRAP TOPIC FORMAT FOLDER ROUNDS SCHEMA [JAR,...]

SIDE is klamm (`klamm.pipeline.ingest_topics`) or connector (Spark's own, with from_json or
from_avro and the Parquet sink). The latter runs under an older pyspark without klamm. The result is
one line of JSON: the seconds and the CPU seconds of the last round.
"""

import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from _spark_job import cpu_s, session

#: In front of the values of format avro: the frame of a registry.
FRAME = 5


def main():
    side, bootstrap, topic, form, folder, rounds, schema, *jars = sys.argv[1:]
    spark = session(jars, **{"spark.sql.parquet.compression.codec": "zstd"})
    ingest = with_klamm if side == "klamm" else with_connector
    figure = {}
    for number in range(int(rounds)):
        began, cpu = time.monotonic(), cpu_s()
        ingest(spark, bootstrap, topic, form, f"{folder}/{number}", schema)
        figure = {"seconds": time.monotonic() - began, "cpu": cpu_s() - cpu}
    print(json.dumps(figure))
    spark.stop()


def with_klamm(spark, bootstrap, topic, form, folder, schema):
    from klamm.pipeline import IngestOptions, ingest_topics, parse_target

    ingest_topics(
        spark,
        IngestOptions(
            (topic,),
            parse_target(f"parquet:{folder}"),
            bootstrap,
            format=form,
            schema=schema if form == "json" else None,
            schema_name="schema",
            registry=schema if form == "avro" else None,
        ),
    )


def with_connector(spark, bootstrap, topic, form, folder, schema):
    from pyspark.sql import functions as F

    stream = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 2_000_000)
        .load()
    )
    origin = ["topic", "partition", "offset", "timestamp"]
    if form == "json":
        row = F.from_json(F.col("value").cast("string"), schema).alias("row")
        stream = stream.select(row, *origin).select("row.*", *origin)
    elif form == "avro":
        from pyspark.sql.avro.functions import from_avro

        value = F.expr(f"substring(value, {FRAME + 1}, length(value))")
        row = from_avro(value, schema).alias("row")
        stream = stream.select(row, *origin).select("row.*", *origin)
    query = (
        stream.writeStream.format("parquet")
        .option("checkpointLocation", f"{folder}-checkpoint")
        .trigger(availableNow=True)
        .start(folder)
    )
    query.awaitTermination()


if __name__ == "__main__":
    main()
