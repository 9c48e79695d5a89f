"""`klamm ingest` side by side with Spark's own connector and its Parquet sink, on the same topics.

    make bench BENCH=ingest

Raw records, JSON and Avro, of about 200 bytes and of 1 KB. The connector is that of
`bench/spark.py`, with from_json and from_avro. Shown are records a second, and the CPU seconds of
Spark and its Python workers for a million records.
"""

import argparse
import io
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import fastavro
from confluent_kafka import Producer

from bench.spark import (
    HOME,
    PARTITIONS,
    ROOT,
    SPARK,
    connector,
    create,
    delete,
    flush,
    one_broker,
    produce,
)

FORMATS = ("raw", "json", "avro")
SIZES = (200, 1000)
AVRO_JAR = f"org.apache.spark:spark-avro_2.13:{SPARK}"
COLUMNS = "id bigint, customer string, amount double, paid boolean, items int, note string"
AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "customer", "type": "string"},
        {"name": "amount", "type": ["null", "double"]},
        {"name": "paid", "type": "boolean"},
        {"name": "items", "type": "int"},
        {"name": "note", "type": "string"},
    ],
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=1_000_000, help="of each size")
    parser.add_argument("--rounds", type=int, default=2, help="of each, of which the last counts")
    parser.add_argument("--formats", nargs="+", default=FORMATS, choices=FORMATS)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, choices=SIZES)
    parser.add_argument("--only-klamm", action="store_true", help="without the connector")
    asked = parser.parse_args()
    python, jars = (None, ()) if asked.only_klamm else connector_with_avro()
    with one_broker() as bootstrap, registry() as url, tempfile.TemporaryDirectory() as folder:
        for size in asked.sizes:
            for form in asked.formats:
                topic = fill(bootstrap, size, asked.records, form)
                print(f"{asked.records:,} records of {size} bytes, {form}", flush=True)
                schema = {"raw": "-", "json": COLUMNS, "avro": url}[form]
                sides = {"klamm": (Path(sys.executable), schema, ())}
                if python is not None:
                    text = json.dumps(AVRO) if form == "avro" else schema
                    sides["connector"] = (python, text, jars)
                for name, side in sides.items():
                    figure = run(name, *side, bootstrap, topic, form, folder, asked.rounds)
                    rate = asked.records / figure["seconds"]
                    per_million = figure["cpu"] / asked.records * 1e6
                    print(f"  {name:10} {rate:12,.0f} records/s {per_million:8.2f} CPU s/million")
                delete(bootstrap, topic)


def connector_with_avro():
    """The connector's environment, with what from_avro needs."""
    python, jars = connector()
    if not any("spark-avro" in jar.name for jar in jars):
        command = ["mvn", "-q", "dependency:copy", f"-Dartifact={AVRO_JAR}"]
        subprocess.run([*command, f"-DoutputDirectory={HOME / 'jars'}"], cwd=HOME, check=True)
        python, jars = connector()
    return python, jars


@contextmanager
def registry():
    """A registry with one schema."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            body = json.dumps({"schema": json.dumps(AVRO)}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            """Discard the access log."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def fill(bootstrap, size, records, form):
    """A topic with orders of about this size."""
    topic = f"ingest-{size}-{form}-{time.time_ns()}"
    create(bootstrap, topic)
    producer = Producer(
        {"bootstrap.servers": bootstrap, "compression.type": "lz4", "linger.ms": 20}
    )
    parsed = fastavro.parse_schema(AVRO)
    room = size - (110 if form != "avro" else 30)
    for number in range(records):
        order = {
            "id": number,
            "customer": f"c-{number * 7919 % 99991}",
            "amount": number % 1000 / 4,
            "paid": number % 3 == 0,
            "items": number % 7,
            "note": (f"lorem ipsum dolor {number} " * (room // 18 + 1))[:room],
        }
        if form == "avro":
            out = io.BytesIO()
            fastavro.schemaless_writer(out, parsed, order)
            value = b"\0\0\0\0\1" + out.getvalue()
        else:
            value = json.dumps(order).encode()
        produce(producer, topic, value, number % PARTITIONS)
    flush(producer)
    return topic


def run(name, python, schema, jars, bootstrap, topic, form, folder, rounds):
    command = [python, ROOT / "bench" / "_ingest_job.py", name, bootstrap, topic, form]
    more = [f"{folder}/{name}-{topic}", str(rounds), schema]
    more += [",".join(map(str, jars))] if jars else []
    hidden = ("SPARK_HOME",) if name == "klamm" else ("SPARK_HOME", "PYTHONPATH")
    finished = subprocess.run(
        [*map(str, command), *more],
        env={key: value for key, value in os.environ.items() if key not in hidden},
        capture_output=True,
        text=True,
    )
    if finished.returncode:
        sys.exit(finished.stderr[-3000:])
    return json.loads(finished.stdout.splitlines()[-1])


if __name__ == "__main__":
    main()
