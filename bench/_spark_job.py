"""One side of the comparison in `bench/spark.py`, as a process: reads and writes, and times it.

    python bench/_spark_job.py FORMAT BOOTSTRAP SOURCE TARGET RECORDS ROUNDS WHAT,... [JAR,...]

SOURCE and TARGET are topics, WHAT is read, stream, write or latency. KAFKA_OPTIONS in the
environment is a JSON object of more options, as a secured cluster needs them. It runs under an
older pyspark without klamm as well, so it imports that only where klamm is. The result is one line
of JSON.
"""

import json
import os
import sys
import tempfile
import time
from pathlib import Path

from pyspark.sql import SparkSession

LATENCY_S = 40
LATENCY_RATE = 500


def session(jars, **settings):
    """A session on two cores of this machine, with these jars and settings."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "2g")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.log.level", "ERROR")
    )
    if jars:
        builder = builder.config("spark.jars", jars[0])
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def main():
    form, bootstrap, source, target, records, rounds, what, *jars = sys.argv[1:]
    spark = session(jars)
    more = json.loads(os.environ.get("KAFKA_OPTIONS", "{}"))
    servers = {"kafka.bootstrap.servers": bootstrap, **more}

    def load(reader):
        return reader.format(form).options(**servers, subscribe=source, startingOffsets="earliest")

    def read_batch():
        load(spark.read).load().write.format("noop").mode("overwrite").save()

    def read_stream():
        with tempfile.TemporaryDirectory() as checkpoint:
            query = (
                load(spark.readStream)
                .load()
                .writeStream.format("noop")
                .option("checkpointLocation", checkpoint)
                .trigger(availableNow=True)
                .start()
            )
            query.awaitTermination()

    def write_batch():
        rows = load(spark.read).load().select("value")
        rows.write.format(form).options(**servers, topic=target).mode("append").save()

    def latencies():
        """How old records are when their batch is done, from the second half of a minute."""
        from confluent_kafka import Producer

        ages = []

        def note(frame, _):
            stamps = [row[0] for row in frame.select("timestamp").collect()]
            now = time.time()
            ages.extend((now, now - stamp.timestamp()) for stamp in stamps)

        with tempfile.TemporaryDirectory() as checkpoint:
            query = (
                load(spark.readStream)
                .load()
                .writeStream.foreachBatch(note)
                .option("checkpointLocation", checkpoint)
                .start()
            )
            query.processAllAvailable()  # what it takes to start is not what is measured
            producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5})
            began = time.time()
            sent = 0
            while time.time() - began < LATENCY_S:
                while sent < (time.time() - began) * LATENCY_RATE:
                    producer.produce(source, b"x" * 1000, partition=sent % 2)
                    sent += 1
                producer.poll(0.01)
            producer.flush(30)
            query.processAllAvailable()
            query.stop()
        steady = sorted(age for at, age in ages if at > began + LATENCY_S / 2)
        places = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
        return {name: steady[int(len(steady) * share)] for name, share in places.items()}

    if what == "latency":
        print(json.dumps({"latency": latencies()}))
        spark.stop()
        return
    counted = load(spark.read).load().count()
    assert counted == int(records), (counted, records)
    figures = {}
    runs = {"read": read_batch, "stream": read_stream, "write": write_batch}
    for name in what.split(","):
        # The first round warms up the JVM and the workers.
        for _ in range(int(rounds)):
            began, cpu = time.monotonic(), cpu_s()
            runs[name]()
            figures[name] = {"seconds": time.monotonic() - began, "cpu": cpu_s() - cpu}
    print(json.dumps(figures))
    spark.stop()


def cpu_s():
    """CPU seconds of this process and all below it, with those that have ended."""
    ticks, pids = 0, [os.getpid()]
    while pids:
        process = Path(f"/proc/{pids.pop()}")
        try:
            ticks += sum(map(int, (process / "stat").read_text().rsplit(")", 1)[1].split()[11:15]))
            for children in process.glob("task/*/children"):
                pids += children.read_text().split()
        except OSError:
            continue
    return ticks / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
