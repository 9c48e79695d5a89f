"""The sink in transactions beside the sink that writes at least once: what a task costs.

    KAFKA_LIBS=... python -m bench.sink [--rows 100000] [--batches 10]

One task after another, without Spark, on a broker of Apache Kafka: the difference between the two
is what the transaction and its proof cost.
"""

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

import pyarrow as pa

from klamm.pipeline.source.options import write_options
from klamm.pipeline.source.transactional_writer import Place, write_once
from klamm.pipeline.source.writer import write_rows
from klamm.zookeeper.server import ZooKeeperServer
from tests.interop.clients import create
from tests.support.mixed_cluster import Kind, MixedCluster


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=100_000, help="of a task")
    parser.add_argument("--batches", type=int, default=10)
    asked = parser.parse_args()
    if "KAFKA_LIBS" not in os.environ:
        print("Skipped: KAFKA_LIBS does not name Apache Kafka's jars (make kafka).")
        return
    rows = pa.RecordBatch.from_pydict(
        {"value": pa.array([b"%d " % number * 20 for number in range(asked.rows)])}
    )
    with (
        tempfile.TemporaryDirectory() as folder,
        ZooKeeperServer() as zookeeper,
        MixedCluster(
            zookeeper.address,
            Path(folder),
            Path(os.environ["KAFKA_LIBS"]),
            transaction_state_log_replication_factor=1,
            transaction_state_log_min_isr=1,
            offsets_topic_replication_factor=1,
        ) as cluster,
    ):
        cluster.add(Kind.KAFKA, 1)
        create(cluster.bootstrap, "rows", [[1], [1]])
        given = {"kafka.bootstrap.servers": cluster.bootstrap, "topic": "rows"}
        plain = write_options(given)
        once = write_options({**given, "kafka.transactional.id": "bench"})
        ways = {
            "at least once": lambda number: write_rows(iter([rows]), plain),
            "exactly once": lambda number: write_once(iter([rows]), once, Place("q", number, 0)),
        }
        for name, write in ways.items():
            write(0)
            began = time.monotonic()
            for number in range(1, asked.batches + 1):
                write(number)
            seconds = time.monotonic() - began
            rate = asked.rows * asked.batches / seconds
            print(f"  {name:14} {rate:12,.0f} rows/s {seconds / asked.batches:8.3f} s/task")


if __name__ == "__main__":
    sys.exit(main())
